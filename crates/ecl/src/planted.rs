//! Faults that are planted on purpose, one at a time, so that the simulation can prove that it finds such faults.
//!
//! They are compiled in only with the feature `planted-faults`, which nothing but the tests of `strongroom-testing` enables
//! (the tidy test checks that); without it every question here is answered `false` at compile time.

/// A mistake that an association could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A tag is taken for its slot: data of an earlier transfer passes for data of the present one.
    TagWithoutGeneration,
    /// The replay window admits one number that it has no bit for any more.
    WindowTooWide,
    /// A packet is acknowledged, and its quantum handed on, before the checksum was compared.
    AcknowledgedUnchecked,
    /// A grant of credits is not sent again when it was lost.
    CreditLost,
    /// A command that comes again is handed to the logical unit again.
    CommandRepeated,
}

/// Which fault an association has: none, but in a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted(Option<PlantedFault>);

impl Planted {
    /// This one. Only a build with the feature has this function.
    #[cfg(feature = "planted-faults")]
    pub fn fault(fault: PlantedFault) -> Planted {
        Planted(Some(fault))
    }

    /// Whether the association shall make this mistake.
    pub(crate) fn has(self, fault: PlantedFault) -> bool {
        cfg!(feature = "planted-faults") && self.0 == Some(fault)
    }
}
