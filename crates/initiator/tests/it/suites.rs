//! Proves that volumes and channels of every cipher suite work with each other, that a suite is agreed on or the connection refused, and
//! that the paper's own suite protects nothing outside a benchmark.

use std::collections::HashSet;

use strongroom_block::{Buffer, Lba, Suite};
use strongroom_initiator::{AttachError, RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_target::{Medium, SealedSpec, VolumeSpec};

use crate::axes::{pairs, schemes, suites};
use crate::support::{Host, SIZE};

const BLOCKS: u64 = 16;

fn data(round: u8) -> Vec<u8> {
    (0..BLOCKS as usize * 4096).map(|at| (at % 251) as u8 ^ round).collect()
}

/// `vault-2` and so on.
fn volume(suite: Suite) -> VolumeSpec {
    let mut spec = VolumeSpec::sealed(format!("vault-{}", suite as u8), SIZE);
    spec.sealed = spec.sealed.map(|sealed| SealedSpec { suite, ..sealed });
    if suite.is_for_benchmarks_only() {
        spec.medium = Medium::Memory;
    }
    spec
}

#[test]
fn every_volumes_suite_goes_with_every_channels() {
    let host = Host::start_with(&Suite::ALL.map(volume), |config| config.suites.benchmarks = true);
    let mut round = 0;
    let mut formatted = HashSet::new();
    for (sealing, (channel, scheme)) in pairs(&suites(), &pairs(&suites(), &schemes())) {
        round += 1;
        let mut options = host.options(host.url(&format!("vault-{}", sealing as u8)));
        (options.channel.scheme, options.channel.suite, options.benchmark_suites) = (Some(scheme), channel, true);
        let device = RemoteDevice::attach(options).unwrap();
        assert_eq!(device.unit().sealed.unwrap().claims.suite, sealing);
        if formatted.insert(sealing as u8) {
            device.format().unwrap();
        } else {
            // What was written through the channel before.
            assert!(read_blocking(&device, Lba(3), BLOCKS).unwrap()[..] == data(round - 1));
        }
        write_blocking(&device, Lba(3), Buffer::copy_from(&data(round)), false).unwrap();
        flush_blocking(&device).unwrap();
        assert!(read_blocking(&device, Lba(3), BLOCKS).unwrap()[..] == data(round), "{sealing} {channel} {scheme}");
        device.detach().unwrap();
    }
    assert_eq!(formatted.len(), Suite::ALL.len());
}

#[test]
fn a_suite_that_the_target_does_not_admit_is_not_talked_down() {
    let host = Host::start_with(&[volume(Suite::Aes256Gcm)], |config| {
        config.suites = vec!["chacha20-poly1305".to_owned()].into()
    });
    for suite in Suite::ALL {
        let mut options = host.options(host.url("vault-1"));
        (options.channel.suite, options.benchmark_suites) = (suite, true);
        let attached = RemoteDevice::attach(options);
        assert_eq!(attached.is_ok(), suite == Suite::ChaCha20Poly1305, "{suite}: {:?}", attached.err());
        if let Err(error) = attached {
            assert!(error.to_string().contains("--channel-suite"), "{error}");
        }
    }
}

#[test]
fn the_papers_suite_is_refused_by_either_end() {
    // A target that would speak it, as one of a benchmark does.
    let host = Host::start_with(&[volume(Suite::Aes192CbcHmacMd5)], |config| config.suites.benchmarks = true);
    let mut options = host.options(host.url("vault-240"));
    let error = RemoteDevice::attach(options.clone()).unwrap_err();
    assert!(matches!(&error, AttachError::Unsupported(why) if why.contains("benchmarks alone")), "{error}");
    options.channel.suite = Suite::Aes192CbcHmacMd5;
    let error = RemoteDevice::attach(options).unwrap_err();
    assert!(matches!(&error, AttachError::Options(why) if why.contains("benchmarks alone")), "{error}");
    // One that does not.
    let host = Host::start(&[volume(Suite::Aes256Gcm)]);
    let mut options = host.options(host.url("vault-1"));
    (options.channel.suite, options.benchmark_suites) = (Suite::Aes192CbcHmacMd5, true);
    RemoteDevice::attach(options).unwrap_err();
    // And none has it on a medium that keeps what is written.
    let durable = VolumeSpec { medium: Medium::Directory, ..volume(Suite::Aes192CbcHmacMd5) };
    let catalogue = strongroom_target::Catalogue::open(host.dir.path()).unwrap();
    let error = catalogue.create(&durable).unwrap_err().to_string();
    assert!(error.contains("--medium memory"), "{error}");
}
