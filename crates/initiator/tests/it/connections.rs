//! Proves that a session of several connections carries commands by all of them, outlives the loss of some, and is content with one
//! where the target takes no more.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use strongroom_block::{BlockDevice, Buffer, BufferMut, DeviceErrorKind, Lba, Request, Token};
use strongroom_initiator::front::fuse::{FuseMount, FuseOptions};
use strongroom_initiator::{RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_target::VolumeSpec;

use crate::support::{Host, SIZE, Wire, eventually};

const BLOCK: usize = 4096;

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

/// Rounds of 64 writes and reads in flight at once; every block is checked.
fn work(device: &RemoteDevice, rounds: u8) {
    for round in 1..=rounds {
        complete(device, |lba| Request::Write { lba: Lba(lba), data: block(round), fua: false });
        let read = complete(device, |lba| Request::Read { lba: Lba(lba), buffer: BufferMut::zeroed(BLOCK) });
        assert!(read.iter().flat_map(|buffer| buffer.iter()).all(|byte| *byte == round), "round {round}");
    }
    flush_blocking(device).unwrap();
}

fn complete(device: &RemoteDevice, request: impl Fn(u64) -> Request) -> Vec<BufferMut> {
    (0..64).for_each(|at| device.submit(Token(at), request(7 * at)));
    let (mut completions, mut buffers, mut left) = (Vec::new(), Vec::new(), 64);
    while left > 0 {
        device.wait(Some(Duration::from_secs(1)));
        device.poll_completions(&mut completions);
        for completion in completions.drain(..) {
            left -= 1;
            buffers.extend(completion.result.unwrap());
        }
    }
    buffers
}

/// Plain and in a channel.
fn attach_both(host: &Host, connections: u16) -> Vec<Arc<RemoteDevice>> {
    [host.url("disk"), host.plain_url("disk")]
        .map(|url| {
            let mut options = host.options(url);
            if !options.url.is_channel() {
                options.iscsi.initiator_name = crate::support::STOCK.into();
            }
            options.iscsi.connections = connections;
            Arc::new(RemoteDevice::attach(options).unwrap())
        })
        .into()
}

#[test]
fn one_connection_is_enough_where_the_target_takes_no_more() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", SIZE)], |config| config.limits.session_connections_max = 1);
    for device in attach_both(&host, 4) {
        work(&device, 2);
        assert_eq!(device.status().wires, 1);
        device.detach().unwrap();
    }
}

/// What a session did beside carrying requests.
fn sessions_and_resent(device: &RemoteDevice) -> (u64, u64) {
    let status = device.status();
    (status.connections, status.engine.commands_resent)
}

#[test]
fn several_connections_carry_one_session() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    for device in attach_both(&host, 4) {
        eventually("all connections are there", || device.status().wires == 4);
        work(&device, 4);
        assert_eq!(sessions_and_resent(&device), (1, 0));
        device.detach().unwrap();
    }
}

#[test]
fn a_session_outlives_its_connections_and_sends_nothing_again() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let wire = Wire::before(&host);
    for connections in [1, 3] {
        let mut options = host.options(wire.url("vault"));
        (options.iscsi.connections, options.iscsi.recovery_level) = (connections, Some(2));
        let device = Arc::new(RemoteDevice::attach(options).unwrap());
        device.format().unwrap();
        let wires = usize::from(connections);
        for cut_all in [false, true, false, true] {
            eventually("all connections are there", || device.status().wires == wires);
            let worker = {
                let device = device.clone();
                std::thread::spawn(move || work(&device, 6))
            };
            std::thread::sleep(Duration::from_millis(40));
            if cut_all {
                wire.cut()
            } else {
                wire.cut_one()
            };
            worker.join().unwrap();
        }
        assert_eq!(sessions_and_resent(&device), (1, 0), "{connections} connections");
        device.detach().unwrap();
    }
}

/// Frames with sealed blocks that each connection carried to the target: a thread of the wire passes on one connection's.
fn count_writes(wire: &Wire) -> Arc<Mutex<HashMap<ThreadId, u64>>> {
    let carried: Arc<Mutex<HashMap<ThreadId, u64>>> = Arc::default();
    let counts = carried.clone();
    wire.tamper_towards_target(move |message| {
        if message.has_blocks() {
            *counts.lock().unwrap().entry(std::thread::current().id()).or_default() += 1;
        }
    });
    carried
}

/// What a program writes to a file and reads back, in blocks of its own part.
fn use_file(mount: &FuseMount, program: u64, rounds: u8) {
    let file = mount.open_file(false).unwrap();
    for round in 1..=rounds {
        for at in 0..16 {
            file.write_all_at(&[round; BLOCK], (program * 16 + at) * BLOCK as u64).unwrap();
        }
        for at in 0..16 {
            let mut read = [0; BLOCK];
            file.read_exact_at(&mut read, (program * 16 + at) * BLOCK as u64).unwrap();
            assert!(read.iter().all(|byte| *byte == round), "program {program}, block {at}, round {round}");
        }
    }
    file.sync_all().unwrap();
}

/// Programs on the file of an attached volume see nothing of a connection that is cut: its commands take the other one.
#[test]
fn a_file_is_carried_by_several_connections_and_loses_nothing_with_one_of_them() {
    const PROGRAMS: u64 = 4;
    const ROUNDS: u8 = 20;
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs /dev/fuse and root");
        return;
    }
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let wire = Wire::before(&host);
    let carried = count_writes(&wire);
    let mut options = host.options(wire.url("vault"));
    options.iscsi.connections = 2;
    let device = Arc::new(RemoteDevice::attach(options).unwrap());
    device.format().unwrap();
    eventually("both connections are there", || device.status().wires == 2);
    let at = tempfile::tempdir().unwrap();
    let mount = FuseMount::start(device.clone(), at.path(), &FuseOptions::new("vault")).unwrap();
    std::thread::scope(|scope| {
        let programs: Vec<_> = (0..PROGRAMS)
            .map(|program| {
                scope.spawn({
                    let mount = &mount;
                    move || use_file(mount, program, ROUNDS)
                })
            })
            .collect();
        eventually("both connections carry writes", || carried.lock().unwrap().len() >= 2);
        wire.cut_one();
        programs.into_iter().for_each(|program| program.join().unwrap());
    });
    eventually("both connections are there again", || device.status().wires == 2);
    assert_eq!(sessions_and_resent(&device), (1, 0));
    assert!(device.losses().is_empty());
    mount.finish_within(Duration::from_secs(60)).map_err(|(_, error)| error).unwrap();
    device.detach().unwrap();

    let again = RemoteDevice::attach(host.options(host.url("vault"))).unwrap();
    let read = read_blocking(&again, Lba(0), PROGRAMS * 16).unwrap();
    assert!(read.iter().all(|byte| *byte == ROUNDS));
    again.detach().unwrap();
}

/// Who was given up while the session would still have been kept gets another one.
#[test]
fn a_session_that_was_given_up_while_it_was_suspended_is_replaced() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let wire = Wire::before(&host);
    let mut options = host.options(wire.url("disk"));
    (options.iscsi.connections, options.iscsi.recovery_level) = (3, Some(2));
    options.timeouts.give_up = Duration::from_millis(300);
    let device = Arc::new(RemoteDevice::attach(options).unwrap());
    eventually("all connections are there", || device.status().wires == 3);
    wire.set_down(true);
    let error = read_blocking(&*device, Lba(1), 1).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Unreachable);
    wire.set_down(false);
    let (done, is_done) = sync_channel(1);
    let user = device.clone();
    std::thread::spawn(move || {
        while read_blocking(&*user, Lba(1), 1).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(user);
        done.send(())
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("requests are never answered again");
    assert_eq!(device.status().connections, 2);
    device.detach().unwrap();
}

#[test]
fn below_level_2_the_session_is_replaced() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let wire = Wire::before(&host);
    let mut options = host.options(wire.url("vault"));
    (options.iscsi.connections, options.iscsi.recovery_level) = (3, Some(0));
    let device = Arc::new(RemoteDevice::attach(options).unwrap());
    device.format().unwrap();
    eventually("all connections are there", || device.status().wires == 3);
    let worker = {
        let device = device.clone();
        std::thread::spawn(move || work(&device, 6))
    };
    std::thread::sleep(Duration::from_millis(40));
    wire.cut_one();
    worker.join().unwrap();
    eventually("there is another session", || device.status().connections == 2 && device.status().wires == 3);
    device.detach().unwrap();
}

#[test]
fn a_restarted_target_gets_a_new_session_of_as_many() {
    let mut host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let mut options = host.options(host.url("disk"));
    options.iscsi.connections = 3;
    let device = Arc::new(RemoteDevice::attach(options).unwrap());
    eventually("all connections are there", || device.status().wires == 3);
    write_blocking(&*device, Lba(1), block(1), false).unwrap();
    host.stop();
    host.start_again();
    assert_eq!(read_blocking(&*device, Lba(1), 1).unwrap()[..], [1; BLOCK]);
    eventually("all connections are there again", || device.status().wires == 3);
    assert_eq!(device.status().connections, 2);
}
