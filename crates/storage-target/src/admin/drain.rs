//! Which volumes initiators are being sent away from, and where to.

use crate::names::VolumeName;

use super::report::DrainReport;

/// Drains in force. One for all volumes, and some for single ones, which come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drain {
    entries: Vec<(Option<VolumeName>, Option<String>)>,
}

impl Drain {
    /// Begins to drain a volume, or all; again: to somewhere else.
    pub(crate) fn begin(&mut self, volume: Option<VolumeName>, to: Option<String>) {
        self.entries.retain(|(of, _)| *of != volume);
        self.entries.push((volume, to));
    }

    /// Ends the drain of a volume; without one, every drain. Whether there was one.
    pub(crate) fn end(&mut self, volume: Option<&VolumeName>) -> bool {
        let before = self.entries.len();
        self.entries.retain(|(of, _)| volume.is_some() && of.as_ref() != volume);
        self.entries.len() < before
    }

    /// Whether a volume is drained, and its snapshots with it; inside, where its initiators go instead.
    pub(crate) fn of(&self, volume: &VolumeName) -> Option<Option<&str>> {
        let volume = volume.volume();
        let own = self.entries.iter().find(|(of, _)| of.as_ref() == Some(&volume));
        own.or_else(|| self.entries.iter().find(|(of, _)| of.is_none())).map(|(_, to)| to.as_deref())
    }

    pub(super) fn report(&self) -> Vec<DrainReport> {
        let entry = |(volume, to): &(Option<VolumeName>, Option<String>)| DrainReport {
            volume: volume.as_ref().map(ToString::to_string),
            to: to.clone(),
        };
        self.entries.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volumes_own_drain_comes_before_that_of_all() {
        let (a, b) = (VolumeName::new("a").unwrap(), VolumeName::new("b").unwrap());
        let mut drain = Drain::default();
        assert_eq!(drain.of(&a), None);
        drain.begin(None, None);
        drain.begin(Some(a.clone()), Some("there:3260".into()));
        assert_eq!(drain.of(&a), Some(Some("there:3260")));
        assert_eq!(drain.of(&a.at(&b)), Some(Some("there:3260")), "its snapshots go with it");
        assert_eq!(drain.of(&b), Some(None));
        assert!(drain.end(Some(&a)) && !drain.end(Some(&a)));
        assert_eq!(drain.of(&a), Some(None));
        assert!(drain.end(None));
        assert_eq!((drain.of(&a), drain.of(&b)), (None, None));
    }
}
