//! What a run simulates: its mix of faults, and the faults that are planted in the code.

/// Faults that are planted on purpose, so that the simulation can prove that it finds them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted {
    /// In the store.
    pub store: strongroom_store::Planted,
    /// The disk writes the rest of a short write to a wrong offset.
    pub wrong_resumption: bool,
    /// The directory of a new store is not synced.
    pub directory_not_synced: bool,
    /// Initiators take the mark of a flush when its response arrives, not when it is sent.
    pub late_flush_marks: bool,
    /// Initiators seal a request again under a new operation id.
    pub forgets_operations: bool,
    /// A crash of the target loses persistent reservations that were to be kept (APTPL).
    pub forgets_reservations: bool,
    /// A crash of the target loses writer leases.
    pub forgets_leases: bool,
    /// Messages between workers of the target are lost.
    pub loses_messages: bool,
    /// Responses that two sessions of the target get at the same time are exchanged.
    pub exchanges_responses: bool,
    /// In associations of ECL.
    pub ecl: strongroom_ecl::Planted,
}

/// How initiators reach the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Connections, as TCP has them.
    Iscsi,
    /// Datagrams, beside a connection for the login.
    Ecl,
}

impl Transport {
    /// Both.
    pub const ALL: [Transport; 2] = [Transport::Iscsi, Transport::Ecl];

    /// That of a seed, where none was chosen: one in four uses ECL.
    pub fn of_seed(seed: u64) -> Transport {
        if seed % 4 == 3 { Transport::Ecl } else { Transport::Iscsi }
    }
}

/// The mix of faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Some of everything, as the seed has it.
    Everything,
    /// As `Everything`, with one initiator.
    OneInitiator,
    /// Several initiators whose connections are cut; the target never crashes and never closes its store.
    Cuts,
    /// Several initiators whose connections are cut, and a target that closes its store in order and opens it again.
    Closes,
    /// Several initiators, and a target that crashes.
    Crashes,
    /// As `Crashes`, with many crashes, many flushes and a slow network.
    Flushes,
    /// An initiator of the volume and one of its clone; the only events are snapshots that are taken and deleted.
    Clones,
    /// Blocks rot on the disk, and the target crashes.
    Rot,
    /// Any bit on the disk of a closed store may flip: also in its units, tables, checkpoints and superblocks. It need not open then.
    RotAnywhere,
    /// Initiators fence each other with persistent reservations; the target crashes.
    Reservations,
    /// Initiators claim exclusive writer leases: they are refused, wait, and take over; connections are lost for longer than a lease
    /// lasts, and the target crashes.
    Leases,
    /// Key epochs begin, and connections are cut.
    Keys,
    /// Initiators also write halves of blocks.
    Halves,
    /// As `Halves`, with three initiators of three blocks and a target that crashes often: blocks are written between a crash and the
    /// replay of what it took.
    ReplayedHalves,
    /// The only trouble is a bad path of datagrams. Over iSCSI nothing goes wrong.
    Datagrams,
    /// One initiator that reads for long, over a path that loses nothing and sends each packet again when it is just too old for the replay
    /// window.
    Replays,
    /// A large volume of which only a few blocks are checked.
    Large,
}

impl Profile {
    /// All of them but those whose histories are long and alike.
    pub const ALL: [Profile; 15] = [
        Profile::Everything,
        Profile::OneInitiator,
        Profile::Cuts,
        Profile::Closes,
        Profile::Crashes,
        Profile::Flushes,
        Profile::Clones,
        Profile::Rot,
        Profile::RotAnywhere,
        Profile::Reservations,
        Profile::Leases,
        Profile::Keys,
        Profile::Halves,
        Profile::ReplayedHalves,
        Profile::Datagrams,
    ];
}
