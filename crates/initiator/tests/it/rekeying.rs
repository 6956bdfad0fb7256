//! Proves that channels change their keys while blocks go both ways, under every scheme, unnoticed except by the counters;
//! and that a node whose key is struck off loses its sessions at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, Buffer, BufferMut, Lba, Request, Token};
use strongroom_channel::Scheme;
use strongroom_initiator::{RemoteDevice, read_blocking, write_blocking};
use strongroom_target::VolumeSpec;
use strongroom_target::admin::{Client, Reply, Request as AdminRequest, default_socket};

use crate::support::{Host, SIZE};

const BLOCK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);
const WRITES: u64 = 200;

#[test]
fn keys_change_under_load_in_both_directions_under_every_scheme() {
    let host = Host::start_with(&[VolumeSpec::sealed("vault", SIZE)], |config| config.limits.rekey_tags = 7);
    host.attach("vault").format().unwrap();
    for &scheme in Scheme::ALL {
        let mut options = host.options(host.url("vault"));
        // Feedback would go at its own time, and with it keys might change between two looks.
        (options.channel.scheme, options.sealing.verified_feedback) = (Some(scheme), false);
        (options.channel.rekey.tags, options.channel.rekey.bytes) = (1 << 20, 50_000);
        let device = RemoteDevice::attach(options).unwrap();
        let mut completions = Vec::new();
        for (round, count) in [(0, WRITES), (1, WRITES)] {
            for at in 0..count {
                let lba = Lba(at * 4);
                let request = match round {
                    0 => Request::Write { lba, data: Buffer::copy_from(&[at as u8; 4 * BLOCK]), fua: false },
                    _ => Request::Read { lba, buffer: BufferMut::zeroed(4 * BLOCK) },
                };
                device.submit(Token(at), request);
            }
            let mut done = 0;
            while done < count {
                assert!(device.wait(Some(PATIENCE)), "nothing completes");
                device.poll_completions(&mut completions);
                for completion in completions.drain(..) {
                    done += 1;
                    let read = completion.result.unwrap();
                    assert!(read.is_none_or(|buffer| buffer[..] == [completion.token.0 as u8; 4 * BLOCK]), "{scheme}");
                }
            }
        }
        let status = device.status();
        assert_eq!(status.connections, 1, "{scheme}: {:?}", status.last_loss);
        // We change by bytes, at least every third write; the target by tags.
        assert!(status.rekeys >= WRITES / 4 && status.peer_rekeys >= WRITES / 7, "{scheme}: {status:?}");
        let (ours, theirs) = told_by_the_target(&host);
        assert!(ours >= status.peer_rekeys && theirs >= status.rekeys, "{scheme}: {ours} {theirs} {status:?}");
        device.detach().unwrap();
    }
}

/// How often the target, and its initiator, have changed keys, as `status` tells.
fn told_by_the_target(host: &Host) -> (u64, u64) {
    let mut client = Client::connect(&default_socket(host.dir.path())).unwrap().expect("it listens");
    match client.ask(&AdminRequest::Status, PATIENCE).unwrap() {
        Reply::Status(report) => {
            let session = report.sessions.iter().find(|session| session.volume.is_some()).expect("one is there");
            (session.connections[0].rekeys, session.connections[0].peer_rekeys)
        }
        other => panic!("{other:?}"),
    }
}

/// The requirement is ten seconds; a reload takes as long as the workers need to look at their sessions.
#[test]
fn attack_go_on_after_the_identity_was_revoked() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    host.attach("vault").format().unwrap();
    for &scheme in Scheme::ALL {
        let attach = |mut options: strongroom_initiator::AttachOptions| {
            options.channel.scheme = Some(scheme);
            Arc::new(RemoteDevice::attach(options).unwrap())
        };
        let (alice, bob) = (attach(host.options(host.url("vault"))), attach(host.bobs_options(host.url("vault"))));
        // Alice never stops asking.
        let asked = Arc::new(AtomicU64::new(0));
        let asking = {
            let (alice, asked) = (alice.clone(), asked.clone());
            std::thread::spawn(move || {
                loop {
                    if let Err(error) = read_blocking(&*alice, Lba(0), 16) {
                        return error;
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        while asked.load(Ordering::Relaxed) < 20 {
            std::thread::yield_now();
        }
        let revoked_at = Instant::now();
        let mut config = host.config();
        config.peers.retain(|peer| peer.name != "alice");
        host.reload(config);
        let error = asking.join().unwrap();
        assert!(revoked_at.elapsed() < Duration::from_secs(10), "{scheme}: {:?}", revoked_at.elapsed());
        assert!(error.message.contains("[[peer]]"), "and she is not let in again: {error}");
        assert!(write_blocking(&*alice, Lba(0), Buffer::copy_from(&[1; BLOCK]), false).is_err());
        // A peer that was not struck off goes on.
        write_blocking(&*bob, Lba(1), Buffer::copy_from(&[2; BLOCK]), false).unwrap();
        assert_eq!(bob.status().connections, 1);
        bob.detach().unwrap();
        host.reload(host.config());
    }
}
