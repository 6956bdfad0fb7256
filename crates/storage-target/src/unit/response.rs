//! Responses that many commands give.

use strongroom_block::Buffer;
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Sense, Status};

/// CHECK CONDITION.
pub(super) fn check_condition(sense: Sense) -> Response {
    Response::check_condition(sense.encode())
}

/// A status without sense.
pub(super) fn status(status: Status) -> Response {
    Response { status: status as u8, ..Response::default() }
}

/// Parameter data, cut to the allocation length.
pub(super) fn data(mut bytes: Vec<u8>, allocation_len: u32) -> Response {
    bytes.truncate(allocation_len as usize);
    Response::good_data(Buffer::from(bytes::Bytes::from(bytes)))
}

/// D_SENSE: sense in descriptor format.
pub(super) fn with_descriptor_sense(response: Response) -> Response {
    if response.sense.is_empty() {
        return response;
    }
    let sense = Sense::parse(&response.sense).map(|sense| sense.encode_descriptor());
    Response { sense: sense.unwrap_or_default(), ..response }
}
