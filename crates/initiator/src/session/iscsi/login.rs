//! What is proposed in a login, and what the refusal of one means.

use strongroom_iscsi::DigestOffer;
use strongroom_iscsi::initiator::{Config, SessionKind};

use crate::chap::ChapAccount;
use crate::session::transport::InitiatorPort;
use crate::{AttachError, AttachOptions};

/// A session without a connection is kept for this long by a target that agrees, in seconds.
const RETAIN_S: u16 = 60;

/// The login of the first connection.
pub(super) fn login_config(
    options: &AttachOptions,
    port: &InitiatorPort,
    in_channel: bool,
) -> Result<Config, AttachError> {
    let kind = SessionKind::Normal { target_name: options.target_name() };
    let mut config = Config::new(options.iscsi.initiator_name.clone(), port.isid, kind);
    config.in_channel = in_channel;
    config.offer.connections_max = options.iscsi.connections.max(1);
    config.offer.time2retain_s = RETAIN_S;
    config.login_timeout = options.timeouts.connect;
    // The functions of level 2 are not used here, and some targets know no such key.
    config.offer.protocol_level = 1;
    config.offer.error_recovery_level = recovery_level(options);
    config.offer.header_digest = options.iscsi.digests;
    config.offer.data_digest = options.iscsi.digests;
    config.chap = options.iscsi.chap.as_ref().map(ChapAccount::login).transpose()?;
    Ok(config)
}

/// What to propose. Keeping what was sent costs, so it is only asked for where it serves: level 1 mends what digests find
/// damaged, level 2 keeps a session of several connections when one is lost.
fn recovery_level(options: &AttachOptions) -> u8 {
    options.iscsi.recovery_level.unwrap_or(match options.iscsi.digests {
        _ if options.iscsi.connections > 1 => 2,
        DigestOffer::Prefer | DigestOffer::Require => 1,
        DigestOffer::Allow | DigestOffer::Never => 0,
    })
}
