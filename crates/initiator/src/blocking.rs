//! One request at a time on a device that nobody else uses: for tools and for the last flush.

use strongroom_block::{BlockDevice, Buffer, BufferMut, Completion, DeviceError, Lba, Request, Token};

/// Never used by a front end, whose tokens count up from 0.
const TOKEN: Token = Token(u64::MAX);

/// Submits one request and waits for it. The caller must be the only consumer of the device's completions, with nothing
/// else in flight.
fn perform(device: &dyn BlockDevice, request: Request) -> Result<Option<BufferMut>, DeviceError> {
    device.submit(TOKEN, request);
    let mut completions: Vec<Completion> = Vec::new();
    loop {
        device.wait(None);
        device.poll_completions(&mut completions);
        for completion in completions.drain(..) {
            if completion.token == TOKEN {
                return completion.result;
            }
        }
    }
}

/// Reads `count` blocks from `lba` on and waits.
///
/// # Errors
/// What the device says.
pub fn read_blocking(device: &dyn BlockDevice, lba: Lba, count: u64) -> Result<BufferMut, DeviceError> {
    let buffer = BufferMut::zeroed((count as usize) << device.geometry().block_size.shift());
    perform(device, Request::Read { lba, buffer }).map(|buffer| buffer.expect("a read completes with its buffer"))
}

/// Writes whole blocks from `lba` on and waits.
///
/// # Errors
/// What the device says.
pub fn write_blocking(device: &dyn BlockDevice, lba: Lba, data: Buffer, fua: bool) -> Result<(), DeviceError> {
    perform(device, Request::Write { lba, data, fua }).map(drop)
}

/// Replaces part of one block and waits.
///
/// # Errors
/// What the device says.
pub fn write_part_blocking(
    device: &dyn BlockDevice,
    lba: Lba,
    offset_bytes: u32,
    data: Buffer,
) -> Result<(), DeviceError> {
    perform(device, Request::WritePart { lba, offset_bytes, data, fua: false }).map(drop)
}

/// Forgets blocks and waits.
///
/// # Errors
/// What the device says.
pub fn discard_blocking(device: &dyn BlockDevice, lba: Lba, count: u64) -> Result<(), DeviceError> {
    perform(device, Request::Discard { lba, count }).map(drop)
}

/// Makes everything written durable and waits.
///
/// # Errors
/// What the device says.
pub fn flush_blocking(device: &dyn BlockDevice) -> Result<(), DeviceError> {
    perform(device, Request::Flush).map(drop)
}
