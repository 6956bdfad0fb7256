//! Entry points for fuzzing the two machines: arbitrary bytes become the peer's PDUs, an obliging application answers. What
//! must hold is asserted: no panic, nothing beyond the limits, nothing after `Closed`.

mod connections;
mod hosts;
mod joined;
mod sequences;

use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;

use crate::chap::{self, Algorithm, Challenge, Credentials, Secret};
use crate::pdu::fields::{self, Field};
use crate::pdu::{BHS_BYTES, Bhs, Opcode, Sequence};
use crate::{Lun, Pdu, Serial, initiator, target};

pub use connections::fuzz_connections;
pub use joined::Joined;
pub use sequences::fuzz_sequences;

/// Cuts PDUs out of arbitrary bytes without the patience of a framer: most of what comes is nearly right.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }

    /// A PDU with one of `opcodes`, small numbers in its fields (so that tags and offsets meet), sometimes text.
    fn pdu(&mut self, opcodes: &[u8], in_channel: bool) -> Option<Pdu> {
        let shape = self.byte()?;
        let mut bhs = Bhs([0; BHS_BYTES]);
        bhs.0[0] = opcodes[usize::from(self.byte()?) % opcodes.len()] | (shape & 0x40);
        bhs.0[1] = self.byte()?;
        bhs.0[2] = self.byte()? & 3;
        // Byte by byte where a small number is the likely one.
        for at in [16, 20, 24, 28, 32, 36, 40, 44] {
            let byte = self.byte()?;
            let wide = if byte >= 0xf0 { u32::MAX - u32::from(byte & 0x0f) } else { u32::from(byte) };
            let value = if byte & 0x20 != 0 && byte < 0xf0 { wide << 6 } else { wide };
            bhs.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        let data = match shape & 7 {
            0..=3 => Vec::new(),
            4 | 5 => vec![b'x'; usize::from(self.byte()?) * 16],
            6 => self.text()?,
            _ => {
                let len = usize::from(self.byte()?);
                self.take(len)
            }
        };
        let ahs_words = if shape & 8 != 0 { usize::from(self.byte()?) % 16 } else { 0 };
        let mut ahs = self.take(ahs_words * 4);
        ahs.resize(ahs_words * 4, 0);
        if crate::ahs::check(&ahs).is_err() {
            ahs.clear();
        }
        Some(Pdu::new(bhs, Bytes::from(ahs), Buffer::from(Bytes::from(data)), in_channel && shape & 0x30 == 0x30))
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        const PIECES: [&str; 20] = [
            "AuthMethod=CHAP\0",
            "AuthMethod=CHAP,None\0",
            "CHAP_A=5\0",
            "CHAP_A=9,8,7\0",
            "CHAP_N=a\0CHAP_R=0x00\0",
            "CHAP_I=1\0CHAP_C=0x0102030405060708090a0b0c0d0e0f10\0",
            "CHAP_A=5\0CHAP_I=1\0CHAP_C=0x01\0",
            "ErrorRecoveryLevel=2\0",
            "InitiatorName=a\0",
            "SessionType=Discovery\0",
            "TargetName=t\0",
            "AuthMethod=None\0",
            "MaxRecvDataSegmentLength=512\0",
            "FirstBurstLength=99999999\0",
            "InitialR2T=No\0",
            "SendTargets=All\0",
            "X-a=b\0",
            "MaxOutstandingR2T=0x1\0",
            "HeaderDigest=CRC32C\0",
            "broken\0",
        ];
        let count = self.byte()? % 6;
        (0..count).try_fold(Vec::new(), |mut text, _| {
            text.extend_from_slice(PIECES[usize::from(self.byte()?) % PIECES.len()].as_bytes());
            Some(text)
        })
    }
}

/// Feeds arbitrary bytes to a target session as PDUs of a hostile initiator.
pub fn fuzz_target(now: Instant, bytes: &[u8]) {
    hosts::fuzz_target(now, bytes);
}

fn chap_policy(shape: u8) -> target::ChapPolicy {
    let secret = Secret::new(b"nobody knows this").expect("long enough");
    let target = (shape & 16 != 0).then(|| Credentials { name: "t".into(), secret: secret.clone() });
    let initiator = Credentials { name: "a".into(), secret };
    target::ChapPolicy {
        users: vec![target::ChapUser { initiator, target }],
        algorithms: Algorithm::ALL.to_vec(),
        challenge: Challenge::from_random([shape; chap::CHALLENGE_BYTES + 1]),
        is_required: shape & 8 != 0,
    }
}

/// Feeds arbitrary bytes to an initiator session as PDUs of a hostile target.
pub fn fuzz_initiator(now: Instant, bytes: &[u8]) {
    let mut source = Source(bytes);
    let shape = source.byte().unwrap_or(0);
    let kind = initiator::SessionKind::Normal { target_name: "t".into() };
    let mut config = initiator::Config::new("a", [0; 6], kind);
    config.in_channel = shape & 1 != 0;
    if shape & 4 != 0 {
        let credentials =
            |name: &str, secret| Credentials { name: name.into(), secret: Secret::new(secret).expect("long") };
        config.chap = Some(initiator::ChapLogin {
            ourselves: credentials("a", b"nobody knows this"),
            target: (shape & 8 != 0).then(|| credentials("t", b"nor does one this")),
            algorithms: Algorithm::ALL.to_vec(),
            challenge: Challenge::from_random([shape; chap::CHALLENGE_BYTES + 1]),
        });
    }
    let mut session = initiator::Session::new(now, config.clone());
    if shape & 2 != 0 && config.chap.is_none() {
        log_in_from(&mut session, now, config.in_channel);
    }
    let mut time = now;
    let opcodes = [0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x25, 0x26, 0x31, 0x31, 0x32, 0x3f];
    while let Some(mut pdu) = source.pdu(&opcodes, config.in_channel) {
        time += Duration::from_millis(u64::from(pdu.bhs.0[2]) * 1000);
        if pdu.bhs.0[3] & 1 == 0 {
            pdu.bhs.0[2] = 0;
        }
        let cdb = [0; 16];
        let write = initiator::WriteSource::plain(Buffer::from(Bytes::from(vec![2; 300_000])));
        let _ = session.submit(initiator::Command::read(Lun(0), cdb, 4096));
        let _ = session.submit(initiator::Command::write(Lun(0), cdb, write));
        let _ = session.manage_task(initiator::TaskFunction::LogicalUnitReset, Lun(0), None);
        let _ = session.send_targets(&initiator::SendTargets::ThisTarget);
        session.handle_pdu(time, pdu);
        if session.poll_timeout().is_some_and(|at| at <= time) {
            session.handle_timeout(time);
        }
        while let Some(event) = session.poll_event() {
            if let initiator::Event::DataIn(part) = &event {
                assert!(u64::from(part.offset) + u64::from(part.covers_bytes) <= 4096, "inside what was asked for");
            }
            assert!(!matches!(event, initiator::Event::Closed(_)) || session.poll_event().is_none());
        }
        let mut polled = 0;
        while session.poll_transmit().is_some() {
            polled += 1;
            assert!(polled < 1 << 20, "requests come to an end");
        }
    }
}

fn log_in_from(session: &mut initiator::Session, now: Instant, in_channel: bool) {
    let steps: &[u8] = if in_channel { &[0x87] } else { &[0x81, 0x87] };
    for flags in steps {
        let request = session.poll_transmit().expect("a login request waits");
        let mut bhs = Bhs::new(Opcode::LoginResponse);
        bhs.0[1] = *flags;
        bhs.0[8..16].copy_from_slice(&request.bhs.0[8..16]);
        fields::INITIATOR_TASK_TAG.put(&mut bhs, request.bhs.initiator_task_tag());
        let stat_sn = Serial(u32::from(*flags == 0x87 && !in_channel));
        Sequence { stat_sn, exp_cmd_sn: Serial(1), max_cmd_sn: Serial(64) }.put(&mut bhs);
        session.handle_pdu(now, Pdu::header_only(bhs));
    }
    assert!(matches!(session.poll_event(), Some(initiator::Event::LoggedIn { .. })));
}
