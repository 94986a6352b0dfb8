//! Numbers of layouts: a flat index over the feasible ones, from which each is regenerated.

use crate::layout::Layout;
use crate::layout::count::Counts;
use crate::layout::space::{Group, Prefix, Space};
use crate::layout::walk::Enumeration;

/// Place of a prefix in the numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    first: u64,
    group: u32,
    prefix: u32,
}

/// The feasible layouts of a space, numbered 0, 1, … in layout order.
#[derive(Clone, Debug)]
pub struct Index {
    /// Feasible groups.
    pub groups: Vec<Group>,
    /// The account of the space.
    pub counts: Counts,
    places: Vec<Place>,
    first_places: Vec<usize>,
}

impl Index {
    /// Number the layouts of a walk.
    #[must_use]
    pub fn new(walk: Enumeration) -> Self {
        let (mut places, mut first_places, mut first) = (Vec::new(), Vec::new(), 0);
        for (group, g) in (0..).zip(&walk.groups) {
            first_places.push(places.len());
            for (prefix, p) in (0..).zip(&g.prefixes) {
                places.push(Place {
                    first,
                    group,
                    prefix,
                });
                first += p.size();
            }
        }
        Self {
            groups: walk.groups,
            counts: walk.counts,
            places,
            first_places,
        }
    }

    /// Feasible layouts.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.counts.feasible
    }

    /// Whether no layout is feasible.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of the first layout of a prefix of a group.
    #[must_use]
    pub fn first(&self, group: usize, prefix: usize) -> u64 {
        self.places[self.first_places[group] + prefix].first
    }

    /// Group, prefix and offset of a number.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<(&Group, &Prefix, u64)> {
        let place = self.places[..self.places.partition_point(|p| p.first <= id)].last()?;
        let group = &self.groups[place.group as usize];
        Some((
            group,
            &group.prefixes[place.prefix as usize],
            id - place.first,
        ))
    }

    /// The layout of a number.
    #[must_use]
    pub fn layout(&self, space: &Space, id: u64) -> Option<Layout> {
        let (group, prefix, offset) = self.find(id)?;
        space.layout(group, prefix, offset)
    }
}
