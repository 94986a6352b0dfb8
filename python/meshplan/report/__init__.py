"""What people read: tables of layouts, terms and reasons, printed with Rich."""
