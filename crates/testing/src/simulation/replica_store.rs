//! The store that snapshots are sent to, and the stream that is on its way there.

use std::collections::BTreeMap;

use strongroom_store::{Receiver, Sender, Store};

use super::volume::Volume;
use crate::{Content, Random, SimDisk};

/// The other store.
pub(super) struct Replica {
    pub(super) disk: SimDisk,
    pub(super) blocks: u64,
    pub(super) store: Option<Store>,
    /// The snapshots that arrived.
    pub(super) has: BTreeMap<u64, Vec<Content>>,
    /// The one that arrived last: what the volume is there.
    pub(super) newest: Option<u64>,
    /// The one whose end may have been taken in although the answer was lost.
    pub(super) coming: Option<(u64, Vec<Content>)>,
    pub(super) transfer: Option<Transfer>,
}

/// A stream on its way.
pub(super) struct Transfer {
    pub(super) to: u64,
    pub(super) from: Option<u64>,
    pub(super) resumed: bool,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Something was taken out of it, or changed.
    pub(super) tampered: bool,
}

impl Replica {
    /// A new store for snapshots of a volume, with nothing in it, on a disk of its own.
    pub(super) fn empty(volume: &Volume, random: &mut Random) -> Replica {
        let disk = SimDisk::new(random.number());
        let options = volume.create_options(2, random);
        Store::create_on(Box::new(disk.backend(true)), &options).expect("the disk is new");
        Replica {
            disk,
            blocks: options.geometry.blocks,
            store: None,
            has: BTreeMap::new(),
            newest: None,
            coming: None,
            transfer: None,
        }
    }

    /// The power goes; what was on its way is lost.
    pub(super) fn crash(&mut self) {
        self.store = None;
        self.transfer = None;
        self.disk.crash();
    }
}

impl Transfer {
    /// Something is changed in a piece of the stream, taken out of it, or sent twice.
    pub(super) fn tamper(&mut self, mut bytes: Vec<u8>, random: &mut Random) -> Vec<u8> {
        self.tampered = true;
        let (at, bit) = (random.below(bytes.len() as u64) as usize, random.below(8));
        match random.below(3) {
            0 => bytes[at] ^= 1 << bit,
            1 => drop(bytes.drain(..frame_len(&bytes))),
            _ => bytes = [&bytes[..frame_len(&bytes)], &bytes].concat(),
        }
        bytes
    }
}

/// Bytes of the first frame.
fn frame_len(bytes: &[u8]) -> usize {
    32 + u32::from_be_bytes(bytes[8..12].try_into().expect("4 bytes")) as usize
}
