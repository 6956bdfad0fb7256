//! Fuzzing of sessions with several connections: arbitrary bytes are a script that steps two joined machines.

use std::time::{Duration, Instant};

use super::{Joined, Source};
use crate::{Lun, Offer};

/// Runs a script.
pub fn fuzz_connections(now: Instant, bytes: &[u8]) {
    let mut source = Source(bytes);
    let Some(shape) = source.byte() else { return };
    let mut joined = Joined::new(now, offer(shape), false);
    while step(&mut joined, &mut source).is_some() {
        joined.look();
    }
    joined.finish();
}

fn offer(shape: u8) -> Offer {
    Offer {
        recv_segment_bytes_max: 512 << (shape >> 4 & 1),
        first_burst_bytes: 1024,
        max_burst_bytes: 2048,
        initial_r2t: shape & 0x20 != 0,
        immediate_data: shape & 0x40 != 0,
        error_recovery_level: if shape & 0x0c == 0 { 0 } else { 2 },
        connections_max: 1 + u16::from(shape & 3),
        protocol_level: 2,
        time2retain_s: 3600,
        ..Offer::default()
    }
}

/// One step of the script; `None` at its end.
fn step(joined: &mut Joined, source: &mut Source<'_>) -> Option<()> {
    match source.byte()? % 16 {
        0..3 => {
            let (kind, size) = (source.byte()?, source.byte()?);
            joined.submit(Lun::single_level(u16::from(kind >> 7)), kind & 1 != 0, usize::from(size) * 50);
        }
        way @ 3..9 => joined.carry(usize::from(source.byte()?) % joined.lines().max(1), way),
        9 => joined.complete(usize::from(source.byte()?)),
        10 => joined.redial(),
        11 => {
            let how = source.byte()?;
            joined.cut(usize::from(how >> 2) % joined.lines().max(1), how & 1 == 0, how & 2 == 0);
        }
        12 => joined.manage(source.byte()?),
        13 => joined.pass(Duration::from_millis(u64::from(source.byte()?) * 50)),
        14 => joined.turn(),
        _ => match source.byte()? {
            value @ 0..32 => joined.tamper(value, source.byte()?, source.byte()?),
            32..40 => joined.log_out(),
            _ => {}
        },
    }
    Some(())
}
