//! Columns declared once, and the struct of arrays that carries them to Arrow.
//!
//! Each engine (layouts, KV, MoE) declares its columns as a `&'static [Column]`; the Arrow schema,
//! `planner columns`, the docs page and the tests read that declaration.

/// Declaration of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name, with its unit as suffix: `step_time_s`, `peak_memory_bytes`.
    pub name: &'static str,
    /// Unit in words (`s`, `bytes`, `bytes/s`, `1`), empty for names and switches.
    pub unit: &'static str,
    /// One sentence.
    pub doc: &'static str,
}

/// Values of one column.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Small counts.
    U32(Vec<u32>),
    /// Large counts and bytes that are exact.
    U64(Vec<u64>),
    /// Real numbers.
    F64(Vec<f64>),
    /// Switches.
    Bool(Vec<bool>),
    /// Names out of a fixed list: becomes a dictionary-encoded (categorical) column.
    Name {
        /// Index into `names`, per row.
        codes: Vec<u8>,
        /// The dictionary.
        names: &'static [&'static str],
    },
    /// Free text.
    Text(Vec<String>),
}

impl Data {
    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Name { codes, .. } => codes.len(),
            Self::Text(v) => v.len(),
        }
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::U32(v) => size_of_val(&v[..]),
            Self::U64(v) => size_of_val(&v[..]),
            Self::F64(v) => size_of_val(&v[..]),
            Self::Bool(v) => v.len(),
            Self::Name { codes, .. } => codes.len(),
            Self::Text(v) => v.iter().map(String::len).sum(),
        }
    }
}

/// A struct of arrays: one `Data` per declared column, all of one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Declarations, in order.
    pub columns: Vec<Column>,
    /// Values, in the same order.
    pub data: Vec<Data>,
}

/// How a column's values are stored.
pub(crate) trait Cell: Sized {
    /// The column of some values.
    fn column(values: Vec<Self>) -> Data;
}

impl Cell for u32 {
    fn column(values: Vec<Self>) -> Data {
        Data::U32(values)
    }
}

impl Cell for u64 {
    fn column(values: Vec<Self>) -> Data {
        Data::U64(values)
    }
}

impl Cell for f64 {
    fn column(values: Vec<Self>) -> Data {
        Data::F64(values)
    }
}

impl Cell for bool {
    fn column(values: Vec<Self>) -> Data {
        Data::Bool(values)
    }
}

/// Cells of enums made by `named_enum!`: dictionary-encoded.
macro_rules! name_cells {
    ($($t:ty),+ $(,)?) => {$(
        impl $crate::table::Cell for $t {
            fn column(values: Vec<Self>) -> $crate::table::Data {
                $crate::table::Data::Name {
                    codes: values.into_iter().map(|v| v as u8).collect(),
                    names: <$t>::NAMES,
                }
            }
        }
    )+};
}
pub(crate) use name_cells;

/// Declares a row: a struct `Row`, its `COLUMNS`, and `Rows` that grow into a [`Table`]. The first
/// column is named apart, to count rows by.
macro_rules! rows {
    (
        $(#[$row:meta])*
        $first:ident : $first_ty:ty, $first_unit:literal, $first_doc:literal;
        $($name:ident : $ty:ty, $unit:literal, $doc:literal;)+
    ) => {
        $(#[$row])*
        pub struct Row { #[doc = $first_doc] pub $first: $first_ty, $(#[doc = $doc] pub $name: $ty),+ }

        /// Declaration of every column, in order.
        pub const COLUMNS: &[$crate::table::Column] = &[
            $crate::table::Column { name: stringify!($first), unit: $first_unit, doc: $first_doc },
            $($crate::table::Column { name: stringify!($name), unit: $unit, doc: $doc }),+
        ];

        /// Columns of a table of rows, growing one row at a time.
        #[derive(Clone, Debug, Default)]
        pub struct Rows { $first: Vec<$first_ty>, $($name: Vec<$ty>),+ }

        impl Rows {
            /// Room for so many rows.
            #[must_use]
            pub fn with_capacity(rows: usize) -> Self {
                Self { $first: Vec::with_capacity(rows), $($name: Vec::with_capacity(rows)),+ }
            }
            /// Appends a row.
            pub fn push(&mut self, row: &Row) {
                self.$first.push(row.$first);
                $(self.$name.push(row.$name);)+
            }
            /// Appends rows, a column at a time.
            pub fn extend(&mut self, rows: &[Row]) {
                self.$first.extend(rows.iter().map(|row| row.$first));
                $(self.$name.extend(rows.iter().map(|row| row.$name));)+
            }
            /// Rows so far.
            #[must_use]
            pub fn len(&self) -> usize { self.$first.len() }
            /// Whether there is none.
            #[must_use]
            pub fn is_empty(&self) -> bool { self.$first.is_empty() }
            /// The table, moved out.
            #[must_use]
            pub fn into_table(self) -> $crate::table::Table {
                $crate::table::Table {
                    columns: COLUMNS.to_vec(),
                    data: vec![
                        $crate::table::Cell::column(self.$first),
                        $($crate::table::Cell::column(self.$name)),+
                    ],
                }
            }
        }
    };
}
pub(crate) use rows;
