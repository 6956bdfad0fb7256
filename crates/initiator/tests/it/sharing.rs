//! Proves that two initiators share a sealed volume under every scheme, in custody `keyfile` and in custody `target`: neither undoes what the other wrote into the same blocks,
//! also while one is killed (SIGKILL, a process of its own) and started again and again; and that reservations hold there.
//!
//! Each writes a count into its own half of every shared block, guarded, and into whole blocks of its own. A count only grows, so
//! what is read in the end must be between the last one acknowledged and the last one begun.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, DeviceErrorKind, Lba};
use strongroom_channel::Scheme;
use strongroom_initiator::{
    AttachOptions, KeyFileSource, LeaseOptions, RemoteDevice, read_blocking, write_blocking, write_part_blocking,
};
use strongroom_iscsi::Lun;
use strongroom_iscsi::initiator::{Command as ScsiCommand, Event, WriteSource};
use strongroom_target::VolumeSpec;

use crate::axes::{pairs, schemes};
use crate::hostile_peers::Raw;
use crate::support::{ALICE, BOB, Host, SIZE, key_of, trusted};

const BLOCK: usize = 4096;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const SHARED: u64 = 4;
/// Whole blocks of one's own begin here, and so far apart.
const OWN: u64 = 100;
/// Set for bob's process: URL, key file, scheme, and how many rounds it lasts.
const VARIABLE: &str = "STRONGROOM_TEST_SHARING";
/// Instead of a key file, in custody `target`.
const NO_KEY: &str = "-";
/// Bob is killed after this many writes, each time; where in what follows the kill finds him is chance.
const KILLED_AFTER: [usize; 3] = [5, 12, 23];
/// Rounds of his last life, in which he ends by himself; in the others he goes on until he is killed.
const ROUNDS: u64 = 20;

/// Places that one initiator counts in.
fn places(who: u64) -> impl Iterator<Item = (Lba, u32)> + Clone {
    let shared = (0..SHARED).map(move |at| (Lba(at), who as u32 * BLOCK as u32 / 2));
    shared.chain((0..SHARED).map(move |at| (Lba(OWN * (1 + who) + at), 0)))
}

fn count(device: &RemoteDevice, (lba, offset): (Lba, u32)) -> u64 {
    let block = read_blocking(device, lba, 1).unwrap();
    u64::from_be_bytes(block[offset as usize..offset as usize + 8].try_into().unwrap())
}

fn put(device: &RemoteDevice, (lba, offset): (Lba, u32), value: u64) {
    if lba.0 < SHARED {
        write_part_blocking(device, lba, offset, Buffer::copy_from(&value.to_be_bytes())).unwrap();
    } else {
        let data: Vec<u8> = value.to_be_bytes().into_iter().cycle().take(BLOCK).collect();
        write_blocking(device, lba, Buffer::copy_from(&data), false).unwrap();
    }
}

/// What is known of a count.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    begun: u64,
    done: u64,
}

/// Counts once in every place, and tells.
fn round(device: &RemoteDevice, who: u64, mut tell: impl FnMut(&str, Lba, u64)) {
    for place in places(who) {
        let value = count(device, place) + 1;
        tell("begin", place.0, value);
        put(device, place, value);
        tell("done", place.0, value);
    }
}

/// What bob's process does.
fn be_bob(settings: &str) {
    let [url, key_file, scheme, rounds] = settings.split(' ').collect::<Vec<_>>()[..] else { panic!("{settings}") };
    let mut options = AttachOptions::new(url.parse().unwrap());
    options.lease = LeaseOptions::shared();
    options.iscsi.initiator_name = BOB.into();
    options.channel.node_key = Some(key_of(0xb0));
    options.channel.target_keys = vec![key_of(0x7a).public()];
    options.sealing.key_source = (key_file != NO_KEY).then(|| Arc::new(KeyFileSource::new(key_file)) as Arc<_>);
    options.channel.scheme = Some(scheme.parse().unwrap());
    let device = RemoteDevice::attach(options).unwrap();
    let mut out = std::io::stdout();
    for _ in 0..rounds.parse::<u64>().unwrap() {
        round(&device, 1, |what, lba, value| {
            writeln!(out, "\n@ {what} {} {value}", lba.0).unwrap();
            out.flush().unwrap();
        });
    }
    device.detach().unwrap();
    writeln!(out, "\n@ end 0 0").unwrap();
}

fn start_bob(host: &Host, (volume, scheme): (&str, Scheme), rounds: u64) -> Child {
    let key_file = if volume == "vault" { host.dir.path().join("volume.key") } else { NO_KEY.into() };
    let settings = format!("{} {} {scheme} {rounds}", host.url(volume), key_file.display());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sharing::two_initiators_share_a_volume_while_one_is_killed_again_and_again", "--nocapture"])
        .env(VARIABLE, settings)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Follows bob until he has written `kill_after` times, then kills him; without it, until he ends. Notes what he says.
fn follow_bob(host: &Host, shared: (&str, Scheme), kill_after: Option<usize>, known: &mut HashMap<Lba, Known>) {
    let mut bob = start_bob(host, shared, if kill_after.is_some() { u64::MAX } else { ROUNDS });
    let (mut done, mut ended) = (0, false);
    for line in BufReader::new(bob.stdout.take().unwrap()).lines() {
        // What was in the pipe when he died counts too; half a line does not.
        let Ok(line) = line else { break };
        let ["@", what, lba, value] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
        let (Ok(lba), Ok(value)) = (lba.parse::<u64>(), value.parse::<u64>()) else { continue };
        let place = known.entry(Lba(lba)).or_default();
        match what {
            "begin" => place.begun = place.begun.max(value),
            "done" => {
                (place.done, done) = (value, done + 1);
                if kill_after == Some(done) {
                    bob.kill().unwrap();
                }
            }
            _ => ended = true,
        }
    }
    let status = bob.wait().unwrap();
    assert_eq!(ended && status.success(), kill_after.is_none(), "{shared:?}: {status}");
    // What he sent last was taken in before his session ended, and so comes before what his next attachment writes.
    wait_for_sessions(host, 1);
}

fn wait_for_sessions(host: &Host, count: u64) {
    let until = Instant::now() + PATIENCE;
    while host.stats().sessions > count {
        assert!(Instant::now() < until, "a session goes on without its initiator");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_initiators_share_a_volume_while_one_is_killed_again_and_again() {
    // The test starts itself once more to be bob.
    if let Ok(settings) = std::env::var(VARIABLE) {
        return be_bob(&settings);
    }
    // On several workers, so that the two are not with the same.
    let volumes = [VolumeSpec::sealed("vault", SIZE), trusted()];
    let host = Host::start_with(&volumes, |config| config.workers = Some(2));
    for (volume, scheme) in pairs(&["vault", "trusted"], &schemes()) {
        let attach = |mut options: AttachOptions| {
            options.channel.scheme = Some(scheme);
            RemoteDevice::attach(options).unwrap()
        };
        let alice = Arc::new(attach(host.options(host.url(volume))));
        alice.format().unwrap();
        for place in places(0).chain(places(1)) {
            assert_eq!(count(&alice, place), 0);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let counting = {
            let (alice, is_over) = (alice.clone(), is_over.clone());
            std::thread::spawn(move || {
                let mut rounds = 0;
                while !is_over.load(Ordering::Relaxed) {
                    round(&alice, 0, |_, _, _| {});
                    rounds += 1;
                }
                rounds
            })
        };
        let mut bobs = HashMap::new();
        for kill_after in KILLED_AFTER {
            follow_bob(&host, (volume, scheme), Some(kill_after), &mut bobs);
        }
        follow_bob(&host, (volume, scheme), None, &mut bobs);
        is_over.store(true, Ordering::Relaxed);
        let rounds: u64 = counting.join().unwrap();
        assert!(rounds > 0);
        // A third one finds everything of both.
        let third = attach(host.bobs_options(host.url(volume)));
        for place in places(0) {
            assert_eq!(count(&third, place), rounds, "{volume} {scheme}: alice's {place:?}");
        }
        for place in places(1) {
            let (found, known) = (count(&third, place), bobs[&place.0]);
            assert!(
                (known.done..=known.begun).contains(&found),
                "{volume} {scheme}: bob's {place:?} is {found}, {known:?}"
            );
        }
        alice.detach().unwrap();
        third.detach().unwrap();
        wait_for_sessions(&host, 0);
    }
}

/// Bob's reservation keeps alice from writing, under every scheme, and outlives his connection.
#[test]
fn a_reservation_holds_on_a_sealed_volume() {
    let reserve_out = |raw: &mut Raw, action: u8, keys: (u64, u64)| {
        const WRITE_EXCLUSIVE: u8 = 1;
        let mut cdb = [0; 16];
        cdb[..9].copy_from_slice(&[0x5f, action, WRITE_EXCLUSIVE, 0, 0, 0, 0, 0, 24]);
        let list = [&keys.0.to_be_bytes()[..], &keys.1.to_be_bytes(), &[0; 8]].concat();
        // A unit attention may come first.
        (0..4).any(|_| {
            let source = WriteSource::plain(Buffer::copy_from(&list));
            raw.session.submit(ScsiCommand::write(Lun::single_level(0), cdb, source)).unwrap();
            let Event::Completed(done) = raw.until(|event| matches!(event, Event::Completed(_))) else {
                unreachable!()
            };
            done.status == 0
        })
    };
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    host.attach("vault").format().unwrap();
    for &scheme in Scheme::ALL {
        let mut options = host.options(host.url("vault"));
        assert_eq!(options.iscsi.initiator_name, ALICE);
        options.channel.scheme = Some(scheme);
        let alice = RemoteDevice::attach(options).unwrap();
        let try_write = |mark: u8| write_blocking(&alice, Lba(3), Buffer::copy_from(&[mark; BLOCK]), false);
        try_write(1).unwrap();
        let mut bob = Raw::login_by_channel(&host, "vault", BOB, &key_of(0xb0), scheme);
        assert!(reserve_out(&mut bob, 0, (0, 7)), "REGISTER");
        assert!(reserve_out(&mut bob, 1, (7, 0)), "RESERVE");
        assert_eq!(try_write(2).unwrap_err().kind, DeviceErrorKind::ReservationConflict, "{scheme}");
        assert_eq!(read_blocking(&alice, Lba(3), 1).unwrap()[0], 1, "reading is free");
        drop(bob);
        assert_eq!(try_write(3).unwrap_err().kind, DeviceErrorKind::ReservationConflict, "{scheme}");
        let mut bob = Raw::login_by_channel(&host, "vault", BOB, &key_of(0xb0), scheme);
        assert!(reserve_out(&mut bob, 3, (7, 0)), "CLEAR");
        try_write(4).unwrap();
        alice.detach().unwrap();
    }
}
