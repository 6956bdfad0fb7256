//! A volume that grows while it is attached: the device becomes as large as its blocks can be read, and never smaller.
//!
//! A unit tells that its size has changed at the next command, so one that rests is asked now and then. The target is not trusted
//! with the answer: a sealed volume is only as large as its last block opens, as data or as an absence that somebody with the key has
//! sealed (`format_grown`). Everything else stays as it was: identity, size of the blocks, keys. Absent: who is told a size
//! ([`crate::front`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, DeviceError, DeviceErrorKind, Geometry, Lba, StoreSequence};

use super::RemoteDevice;
use crate::completion::device_error;
use crate::device::versions::OpenedVersion;
use crate::pipeline::answer::Answer;
use crate::pipeline::operation::Capacity;

/// How often it is looked whether the unit has said something, and so the longest that a growth can wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a unit that says nothing is asked.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How many blocks of a part that is said to be unwritten are looked at.
const UNSEALED_SAMPLES: u64 = 63;
/// The largest file that Linux knows, in bytes.
const BYTES_MAX: u64 = i64::MAX as u64;

/// What a look at the size of a unit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It is as large as the device.
    Same,
    /// It was larger; the device has all of it now.
    Grown(Geometry),
    /// It is larger, but its last block does not open: nobody with the key has sealed it as absent. The device stays as it was.
    NotSealed(Geometry),
    /// It is smaller, has other blocks, or is larger than a file can be. The device stays as it was.
    Refused(Geometry),
}

/// What is done where a sealed volume has grown and nobody has sealed the new part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsealedGrowth {
    /// It is said in the log.
    Report,
    /// It is sealed as absent ([`grow_and_seal`]).
    Seal,
}

impl RemoteDevice {
    /// Asks the unit how large it is, and takes what it has become larger by.
    ///
    /// # Errors
    /// What the target says, or that there is no key to look with.
    pub fn grow(&self) -> Result<Growth, DeviceError> {
        let Answer::Capacity(Some(theirs)) = self.intake.ask(Capacity::default(), 0)? else {
            let message = "the target does not say how large the volume is";
            return Err(device_error(DeviceErrorKind::Hardware, None, message));
        };
        let said = judge(self.geometry(), theirs);
        if let Growth::Grown(theirs) = said {
            if !self.opens(Lba(theirs.blocks - 1))? {
                return Ok(Growth::NotSealed(theirs));
            }
            self.intake.grow_to(theirs.blocks);
        }
        Ok(said)
    }

    /// Whether the newest version of a block is authentic; of a plain volume's nobody can tell.
    fn opens(&self, lba: Lba) -> Result<bool, DeviceError> {
        let Some(versions) = self.versions() else { return Ok(true) };
        Ok(matches!(versions.version(lba, StoreSequence(0))?, OpenedVersion::Good { .. }))
    }

    /// Grows with the unit from now on, for as long as the device is there, and calls `grown` each time after it has.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn follow_growth(
        self: &Arc<Self>,
        unsealed: UnsealedGrowth,
        grown: impl FnMut(Geometry) + Send + 'static,
    ) -> std::io::Result<()> {
        let device = Arc::downgrade(self);
        let mut follower = Follower { unsealed, grown, told: told(self), asked: Instant::now(), found: None };
        std::thread::Builder::new().name("strongroom-growth".into()).spawn(move || {
            while let Some(device) = device.upgrade().filter(|device| !device.intake.is_ending()) {
                follower.look(&device);
                // The end of the device need not wait for this.
                drop(device);
                std::thread::sleep(LOOK_EVERY);
            }
        })?;
        Ok(())
    }
}

/// As [`RemoteDevice::grow`]; what nobody has sealed as absent is sealed first. Only for the one initiator that writes to the volume: another one
/// could do the same and then write there.
///
/// What is outside the device's size holds nothing of this device's: a target that gives a larger size than it has gains nothing by that.
///
/// # Errors
/// Those of [`RemoteDevice::grow`].
pub fn grow_and_seal(device: &RemoteDevice) -> Result<Growth, DeviceError> {
    let theirs = match device.grow()? {
        Growth::NotSealed(theirs) => theirs,
        said => return Ok(said),
    };
    let from = device.geometry().blocks;
    if !is_unwritten(device, Lba(from))? {
        // Somebody with the key has begun to use it, so it is not for us to make it absent.
        return Ok(Growth::NotSealed(theirs));
    }
    device.bounds().check_writable(None)?;
    let discard = device.discard(Lba(from), theirs.blocks - from)?;
    device.intake.ask(discard, 0)?;
    device.flush()?;
    device.grow()
}

/// Whether nobody has ever written a block, or sealed it as absent; as the target says.
fn is_unwritten(device: &RemoteDevice, lba: Lba) -> Result<bool, DeviceError> {
    let Some(versions) = device.versions() else { return Ok(false) };
    Ok(matches!(versions.version(lba, StoreSequence(0))?, OpenedVersion::None))
}

/// Where the part begins that the volume has grown by and that nobody has sealed as absent; `None` if there is no such part.
///
/// It is looked for by halving and then by samples, and the target says what is unwritten. One that lies can have blocks made absent, as it can by
/// showing the volume as it was when it was formatted.
///
/// # Errors
/// `OutOfRange` if there is more than one such part, or nothing is formatted; what the target says.
pub fn unsealed_part(device: &RemoteDevice) -> Result<Option<Lba>, DeviceError> {
    let blocks = device.geometry().blocks;
    if !is_unwritten(device, Lba(blocks - 1))? {
        return Ok(None);
    }
    // Written or sealed below `low`, unwritten from `high` on.
    let (mut low, mut high) = (0, blocks - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match is_unwritten(device, Lba(middle))? {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    let refused = |what: &str| device_error(DeviceErrorKind::OutOfRange, Some(Lba(high)), what);
    if high == 0 {
        return Err(refused("the volume is not formatted: strongroom volume format"));
    }
    for sample in 1..=UNSEALED_SAMPLES {
        let at = high + (u128::from(blocks - high) * u128::from(sample) / u128::from(UNSEALED_SAMPLES + 1)) as u64;
        if !is_unwritten(device, Lba(at))? {
            return Err(refused("blocks behind this one are in use: say from where on it grew, with --from"));
        }
    }
    Ok(Some(Lba(high)))
}

/// What there is to a unit's word, to a device with `ours`, that it has `theirs`.
fn judge(ours: Geometry, theirs: Geometry) -> Growth {
    if theirs == ours {
        Growth::Same
    } else if theirs.block_size != ours.block_size || theirs.blocks < ours.blocks || theirs.bytes() > BYTES_MAX {
        Growth::Refused(theirs)
    } else {
        Growth::Grown(theirs)
    }
}

/// What would be another number, had the unit said something: sessions made, and changes that it told of.
fn told(device: &RemoteDevice) -> (u64, u64) {
    let status = device.status();
    (status.connections, status.engine.size_changes)
}

struct Follower<Grown> {
    unsealed: UnsealedGrowth,
    grown: Grown,
    told: (u64, u64),
    asked: Instant,
    /// The last that was found, so that nothing is told twice.
    found: Option<Result<Growth, DeviceError>>,
}

impl<Grown: FnMut(Geometry)> Follower<Grown> {
    fn look(&mut self, device: &RemoteDevice) {
        let told = told(device);
        if !device.status().is_connected || (told == self.told && self.asked.elapsed() < ASK_EVERY) {
            return;
        }
        (self.told, self.asked) = (told, Instant::now());
        let found = match self.unsealed {
            UnsealedGrowth::Report => device.grow(),
            UnsealedGrowth::Seal => grow_and_seal(device),
        };
        if self.found.as_ref() != Some(&found) {
            self.tell(device.geometry(), &found);
        }
        self.found = Some(found);
    }

    fn tell(&mut self, ours: Geometry, found: &Result<Growth, DeviceError>) {
        match found {
            Ok(Growth::Same) => {}
            Ok(Growth::Grown(theirs)) => {
                tracing::info!(bytes = theirs.bytes(), "the volume has grown");
                (self.grown)(*theirs);
            }
            Ok(Growth::NotSealed(theirs)) => tracing::warn!(
                bytes = theirs.bytes(),
                "the volume has grown, but the new part cannot be read; seal it, with the volume's key: strongroom volume grow URL --from {}",
                ours.bytes()
            ),
            Ok(Growth::Refused(theirs)) => tracing::error!(
                blocks = theirs.blocks,
                block_bytes = theirs.block_size.bytes(),
                "the target says another size of the volume, which it cannot have grown to: this attachment keeps to {} blocks of {}",
                ours.blocks,
                ours.block_size
            ),
            Err(error) => tracing::debug!(%error, "it cannot be told how large the volume is"),
        }
    }
}

#[cfg(test)]
mod tests {
    use strongroom_block::BlockSize;

    use super::*;

    #[test]
    fn a_device_never_shrinks_nor_changes_its_blocks() {
        let of = |block_bytes, blocks| Geometry { block_size: BlockSize::new(block_bytes).unwrap(), blocks };
        let ours = of(4096, 100);
        assert_eq!(judge(ours, ours), Growth::Same);
        assert_eq!(judge(ours, of(4096, 101)), Growth::Grown(of(4096, 101)));
        for theirs in
            [of(4096, 99), of(4096, 1), of(512, 1000), of(8192, 100), of(4096, 1 << 51), of(4096, (1 << 52) - 1)]
        {
            assert_eq!(judge(ours, theirs), Growth::Refused(theirs));
        }
        let largest = of(4096, (1 << 51) - 1);
        assert_eq!(judge(ours, largest), Growth::Grown(largest), "as large as a file can be");
    }
}
