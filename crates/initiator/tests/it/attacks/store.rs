//! Attacks by someone who has the store: the volume's log is edited while the target is down, by the store's own code, so that everything
//! in it fits, keyless checksums included. Custody `keyfile`: the target, and so the store, has no key; custody `target`: the store has
//! been stolen without the key that wraps the others. What opens all the same is what a blind store can always do (rollback), and
//! is asserted as such.

use std::sync::Arc;

use strongroom_block::{Buffer, HoleRecord, Lba, SealRecord, keyless_checksum};
use strongroom_channel::Scheme;
use strongroom_initiator::{DamagedReads, RemoteDevice, read_blocking};
use strongroom_store::{BranchId, Extent, Op, OpenOptions, Outcome, Store, View};
use strongroom_target::operate::Operation;
use strongroom_target::{Access, Catalogue, VolumeSpec};

use super::{AT, BLOCK, COUNT, CUSTODIES, assert_noticed, host_with};
use crate::support::{Host, SIZE, keep_the_checksum};

/// A stored block.
type Pair = (Buffer, SealRecord);

/// The store of a volume, in the attacker's hands.
struct Stolen(Store);

impl Stolen {
    fn open(host: &Host, volume: &str) -> Stolen {
        let dir = host.dir.path().join(volume).join("store");
        Stolen(Store::open(&dir, &OpenOptions::default(), Arc::new(|| {})).unwrap())
    }

    fn version(&mut self, lba: Lba, older_than: u64) -> (u64, Pair) {
        let older_than = strongroom_block::StoreSequence(older_than);
        match self.0.execute(Op::ReadVersion { lba, older_than }).unwrap() {
            Outcome::Read(extents) => match &extents[..] {
                [Extent::Blocks { data, sequences, records, .. }] => {
                    (sequences[0].0, (data.clone(), records[0].clone()))
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn newest(&mut self, lba: Lba) -> Pair {
        self.version(lba, 0).1
    }

    /// The version before the newest.
    fn older(&mut self, lba: Lba) -> Pair {
        let newest = self.version(lba, 0).0;
        self.version(lba, newest).1
    }

    fn hole(&mut self, lba: Lba) -> HoleRecord {
        match self.0.execute(Op::Read { lba, count: 1 }).unwrap() {
            Outcome::Read(extents) => match &extents[..] {
                [Extent::Hole { hole: Some(hole), .. }] => hole.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Makes a pair the newest version of a block.
    fn put(&mut self, lba: Lba, (data, record): &Pair) {
        self.put_in(View::default(), lba, (data, record));
    }

    fn put_in(&mut self, view: View, lba: Lba, (data, record): (&Buffer, &SealRecord)) {
        // A store takes what has the newest version's stamp for a repetition: something else comes in between.
        let (_, other) = self.version(Lba(AT.0 + 50), 0);
        for (data, record) in [(&other.0, &other.1), (data, record)] {
            let write =
                Op::Write { lba, data: vec![data.clone()], records: vec![record.clone()], fua: true, origin: None };
            self.0.execute_on(view, write).unwrap();
        }
    }

    fn close(self) {
        self.0.close().unwrap();
    }
}

/// The record with the keyless checksum of other data.
fn fitting(record: &SealRecord, data: &[u8]) -> SealRecord {
    let mut bytes = record.as_bytes().to_vec();
    bytes[32..40].copy_from_slice(&keyless_checksum(data).to_be_bytes());
    SealRecord::decode(&bytes).unwrap()
}

/// As [`host_with`], with one more block that attacks use.
fn scene(volume: &str) -> Host {
    let host = host_with(volume);
    let device = host.attach(volume);
    super::write(&device, Lba(AT.0 + 50), 9);
    device.detach().unwrap();
    host
}

fn attach(host: &Host, volume: &str, scheme: Scheme) -> RemoteDevice {
    let mut options = host.options(host.url(volume));
    (options.channel.scheme, options.sealing.verified_feedback) = (Some(scheme), false);
    RemoteDevice::attach(options).unwrap()
}

/// Edits the volume's store, and looks what readers make of it under every scheme.
fn edited(volume: &str, edit: impl FnOnce(&mut Stolen), then: impl Fn(&RemoteDevice)) -> Host {
    let mut host = scene(volume);
    host.stop();
    let mut store = Stolen::open(&host, volume);
    edit(&mut store);
    store.close();
    host.start_again();
    for &scheme in Scheme::ALL {
        then(&attach(&host, volume, scheme));
    }
    host
}

/// In every custody: the store alone, without the wrapping key, does as little for an attacker in custody `target`.
fn edited_everywhere(edit: impl Fn(&mut Stolen), then: impl Fn(&RemoteDevice)) {
    for volume in CUSTODIES {
        edited(volume, &edit, &then);
    }
}

#[track_caller]
fn assert_block(device: &RemoteDevice, lba: Lba, mark: u8) {
    assert!(read_blocking(device, lba, 1).unwrap()[..] == [mark; BLOCK], "block {lba}");
}

#[test]
fn attack_store_flip() {
    let flip = |keeping: bool| {
        move |store: &mut Stolen| {
            let (data, record) = store.newest(AT);
            let mut changed = data.to_vec();
            match keeping {
                true => keep_the_checksum(&mut changed, keyless_checksum),
                false => changed[5] ^= 1,
            }
            assert_ne!(changed, data.to_vec());
            let record = fitting(&record, &changed);
            store.put(AT, &(Buffer::copy_from(&changed), record));
        }
    };
    let noticed = |device: &RemoteDevice| {
        assert_noticed(device, AT);
        assert_block(device, Lba(AT.0 + 1), 2);
    };
    edited_everywhere(flip(false), noticed);
    edited("trusted", flip(true), noticed);
    let host = edited("vault", flip(true), noticed);
    // Every older version is there still; a reader that chose so reads the newest of them that opens, and is told.
    let before = Catalogue::open(host.dir.path()).unwrap().show("vault").unwrap().volume.access;
    let mut options = host.options(host.url("vault"));
    options.sealing.damaged_reads = DamagedReads::Previous;
    let error = RemoteDevice::attach(options.clone()).unwrap_err();
    assert!(error.to_string().contains("attach read-only"), "what is read must not be written back: {error}");
    options.read_only = true;
    let error = RemoteDevice::attach(options.clone()).unwrap_err();
    assert!(error.to_string().contains("does not allow"), "the volume has a say: {error}");
    let allowed = Access { previous_versions: true, ..before };
    Catalogue::open(host.dir.path()).unwrap().set_access("vault", allowed).unwrap();
    // The unit is told with the next reload; a restarted target reads it anyway.
    let mut host = host;
    host.stop();
    host.start_again();
    let device = RemoteDevice::attach(options).unwrap();
    assert!(read_blocking(&device, AT, COUNT).unwrap()[..] == super::blocks(2)[..], "the version before the damage");
    let found = device.previous_reads();
    assert_eq!((found.count, found.blocks), (1, vec![AT]));
    assert_block(&device, Lba(AT.0 + 1), 2);
    assert_eq!(device.previous_reads().count, 1, "what opens is not looked for");
}

#[test]
fn attack_store_swap_two_blocks() {
    let swap = |store: &mut Stolen| {
        let (one, other) = (store.newest(AT), store.newest(Lba(AT.0 + 1)));
        store.put(AT, &other);
        store.put(Lba(AT.0 + 1), &one);
    };
    edited_everywhere(swap, |device| {
        assert_noticed(device, AT);
        assert!(read_blocking(device, Lba(AT.0 + 1), 1).is_err());
        assert_block(device, Lba(AT.0 + 2), 2);
    });
}

#[test]
fn attack_store_mix_versions() {
    let older_data = |store: &mut Stolen| {
        let ((data, _), (_, record)) = (store.older(AT), store.newest(AT));
        let record = fitting(&record, &data);
        store.put(AT, &(data, record));
    };
    edited_everywhere(older_data, |device| assert_noticed(device, AT));
    let older_record = |store: &mut Stolen| {
        let ((_, record), (data, _)) = (store.older(AT), store.newest(AT));
        let record = fitting(&record, &data);
        store.put(AT, &(data, record));
    };
    edited_everywhere(older_record, |device| assert_noticed(device, AT));
}

/// Not covered: rollback. The pair was once valid here, and nothing that a new reader knows contradicts it.
#[test]
fn attack_store_roll_back_to_an_older_pair() {
    let roll_back = |store: &mut Stolen| {
        let older = store.older(AT);
        store.put(AT, &older);
    };
    edited_everywhere(roll_back, |device| {
        assert_block(device, AT, 1);
        assert_block(device, Lba(AT.0 + 1), 2);
    });
}

#[test]
fn attack_store_serve_zeros() {
    let zeros = |store: &mut Stolen| {
        let (_, record) = store.newest(AT);
        let data = Buffer::copy_from(&[0; BLOCK]);
        let record = fitting(&record, &data);
        store.put(AT, &(data, record));
    };
    edited_everywhere(zeros, |device| assert_noticed(device, AT));
}

/// Absence needs a seal of its own, for exactly that range. (The seal of the whole volume's absence, from when it was formatted,
/// is valid for every block: to serve it again is rollback.)
#[test]
fn attack_store_forge_a_hole() {
    let whole = SIZE / BLOCK as u64;
    let forge = move |store: &mut Stolen| {
        let formatted = store.hole(Lba(AT.0 + 1000));
        assert_eq!((formatted.start, formatted.count), (Lba(0), whole));
        let forged = HoleRecord { start: AT, count: 1, record: formatted.record };
        store.0.execute(Op::Hole { holes: vec![forged], origin: None }).unwrap();
    };
    edited_everywhere(forge, |device| assert_noticed(device, AT));
    let forget = |store: &mut Stolen| {
        let formatted = store.hole(Lba(AT.0 + 1000));
        store.0.execute(Op::Hole { holes: vec![formatted], origin: None }).unwrap();
    };
    edited_everywhere(forget, |device| assert_block(device, AT, 0));
}

/// Two volumes with one key file: the domain keeps them apart.
#[test]
fn attack_store_move_between_volumes() {
    let mut host = scene("vault");
    host.stop();
    Catalogue::open(host.dir.path()).unwrap().create(&VolumeSpec::sealed("other", SIZE)).unwrap();
    host.start_again();
    host.attach("other").format().unwrap();
    super::write(&host.attach("other"), Lba(AT.0 + 50), 7);
    host.stop();
    let mut vault = Stolen::open(&host, "vault");
    let pair = vault.newest(AT);
    vault.close();
    let mut other = Stolen::open(&host, "other");
    other.put(AT, &pair);
    other.close();
    host.start_again();
    for &scheme in Scheme::ALL {
        assert_noticed(&attach(&host, "other", scheme), AT);
    }
}

/// A clone is of its volume's domain: what was written to either at an address is valid at that address of both. Not covered, like
/// rollback; at another address it does not open.
#[test]
fn attack_store_move_between_a_volume_and_its_clone() {
    let mut host = scene("vault");
    host.stop();
    let catalogue = Catalogue::open(host.dir.path()).unwrap();
    catalogue.operate("vault", &Operation::SnapshotCreate { snapshot: "monday".into() }).unwrap();
    let clone = Operation::Clone { snapshot: "monday".into(), name: "copy".into(), access: None };
    catalogue.operate("vault", &clone).unwrap();
    host.start_again();
    let device = host.attach("vault");
    super::write(&device, AT, 5);
    device.detach().unwrap();
    host.stop();
    let mut store = Stolen::open(&host, "vault");
    let branch = store.0.index().branches().iter().map(|branch| branch.id).find(|id| *id != BranchId::VOLUME).unwrap();
    let (one, other) = (store.newest(AT), store.newest(Lba(AT.0 + 1)));
    store.put_in(View::Head(branch), AT, (&one.0, &one.1));
    store.put_in(View::Head(branch), Lba(AT.0 + 2), (&other.0, &other.1));
    store.close();
    host.start_again();
    for &scheme in Scheme::ALL {
        let copy = attach(&host, "copy", scheme);
        assert_block(&copy, AT, 5);
        assert_block(&copy, Lba(AT.0 + 1), 2);
        assert!(read_blocking(&copy, Lba(AT.0 + 2), 1).is_err(), "{scheme}");
    }
}
