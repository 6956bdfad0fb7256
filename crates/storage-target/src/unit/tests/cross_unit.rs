//! Proves what a unit does for a command that another one works on: as a session of the same initiator could, durably if there is no
//! write cache, and with an answer in every case.

use std::sync::mpsc;

use strongroom_store::{Op, Outcome};

use super::commands::without_cache;
use super::*;
use crate::names::VolumeName;
use crate::open_units::{CrossUnitError, CrossUnitReply, CrossUnitRequest, CrossUnitResult, Requester};

fn ask(bench: &mut Bench, initiator: &str, op: Op, may_write: bool) -> CrossUnitResult {
    let (told, answer) = mpsc::channel();
    let reply = CrossUnitReply::new(move |result| told.send(result).unwrap());
    let requester = Requester { initiator_name: initiator.into(), origin: here() };
    let request = CrossUnitRequest { volume: VolumeName::new("disk").unwrap(), requester, op, reply };
    bench.unit.serve(request, may_write);
    bench.drain();
    answer.try_recv().expect("every request is answered")
}

fn write(byte: u8) -> Op {
    Op::Write {
        lba: Lba(4),
        data: vec![Buffer::copy_from(&[byte; BLOCK])],
        records: Vec::new(),
        fua: false,
        origin: None,
    }
}

#[test]
fn a_request_of_another_unit_is_what_a_session_could_do() {
    let mut bench = Bench::plain();
    assert!(matches!(ask(&mut bench, "iqn.a", write(7), true), Ok(Outcome::Written { .. })));
    assert_eq!(bench.read(4, 1), [7; BLOCK]);
    let read = || Op::Read { lba: Lba(4), count: 1 };
    assert!(matches!(ask(&mut bench, "iqn.a", read(), false), Ok(Outcome::Read(_))));
    let outside = Op::Read { lba: Lba(BLOCKS), count: 1 };
    assert!(matches!(ask(&mut bench, "iqn.a", outside, false), Err(CrossUnitError::Store(_))));
    let unreached =
        |result: CrossUnitResult| assert!(matches!(result, Err(CrossUnitError::NotReachable)), "{result:?}");
    unreached(ask(&mut bench, "iqn.a", write(8), false));
    unreached(ask(&mut bench, "iqn.b", read(), true));
    unreached(ask(&mut bench, "iqn.a", Op::Flush, true));
    bench.unit.server.medium.state.started = false;
    unreached(ask(&mut bench, "iqn.a", read(), true));
    bench.unit.server.medium.state.started = true;
    bench.unit.server.sanitizer.set_status(SanitizeStatus::Failed);
    unreached(ask(&mut bench, "iqn.a", read(), true));
    bench.unit.server.sanitizer.set_status(SanitizeStatus::Idle);
    bench.unit.users_mut().set_read_only(KEY, true);
    unreached(ask(&mut bench, "iqn.a", write(8), true));
    assert_eq!(bench.read(4, 1), [7; BLOCK]);
    bench.unit.detach(KEY);
    unreached(ask(&mut bench, "iqn.a", read(), true));
}

#[test]
fn without_a_write_cache_a_request_of_another_unit_is_durable_when_it_is_answered() {
    let mut bench = Bench::plain();
    without_cache(&mut bench);
    for op in [write(7), Op::Discard { lba: Lba(4), count: 1 }] {
        let before = bench.unit.store().stats().syncs;
        assert!(matches!(ask(&mut bench, "iqn.a", op, true), Ok(Outcome::Written { .. })));
        assert!(bench.unit.store().stats().syncs > before);
    }
}
