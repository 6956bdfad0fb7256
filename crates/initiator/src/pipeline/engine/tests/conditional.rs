//! Proves that a conditional write never loses its condition: not even when the target forgets it before it is durable.

use strongroom_block::Lba;

use super::{BLOCK, Rig};
use crate::Limits;
use crate::pipeline::operation::{ConditionalWrite, Write};
use crate::pipeline::sealing::SealedBlocks;

/// A write of block 2, on the condition that nobody writes it in between.
fn conditional(rig: &Rig, mark: u8) -> ConditionalWrite {
    let Write { lba, data, records: Some(records), .. } = rig.write_work(2, &[mark; BLOCK], false) else {
        panic!("a sealed write")
    };
    let expected = rig.unit.blocks[&2].record[8..32].try_into().unwrap();
    ConditionalWrite::new(lba, expected, SealedBlocks { data, records })
}

fn rig() -> Rig {
    let mut rig = Rig::new(true, Limits::default());
    rig.write(2, 1, 1).unwrap();
    rig.flush().unwrap();
    rig
}

#[test]
fn what_another_initiator_wrote_since_is_not_undone_by_a_restart() {
    let mut rig = rig();
    let token = rig.submit(conditional(&rig, 2));
    assert_eq!(rig.exchange(1), 1, "written, not flushed");
    let by_another = rig.write_work(2, &[3; BLOCK], false);
    rig.reconnect(true);
    rig.unit.write_by_another(&by_another);
    rig.run();
    let error = rig.result(token).unwrap_err();
    assert!(error.message.contains("somebody else") && error.lba == Some(Lba(2)), "{error}");
    assert_eq!(rig.read(2, 1).unwrap(), vec![3; BLOCK]);
}

#[test]
fn it_survives_a_restart_once_it_is_acknowledged_and_is_done_once_before() {
    for restart in [false, true] {
        let mut rig = rig();
        let token = rig.submit(conditional(&rig, 2));
        assert_eq!(rig.exchange(1), 1, "written, not flushed");
        rig.reconnect(restart);
        rig.run();
        rig.result(token).unwrap();
        assert_eq!(
            rig.unit.versions[&2].iter().filter(|version| version.sequence > 2).count(),
            1 + usize::from(restart)
        );
        rig.unit.crash();
        assert_eq!(rig.read(2, 1).unwrap(), vec![2; BLOCK], "durable");
        // What is written by others after that is theirs.
        let by_another = rig.write_work(2, &[3; BLOCK], false);
        rig.unit.write_by_another(&by_another);
        rig.engine.disconnected();
        rig.engine.connected(std::sync::Arc::new(super::description(true)), true);
        rig.run();
        assert_eq!(rig.read(2, 1).unwrap(), vec![3; BLOCK]);
    }
}
