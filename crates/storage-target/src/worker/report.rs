//! A session and a volume as `strongroom status` shows them.

use std::sync::Arc;
use std::time::Instant;

use strongroom_channel::Scheme;
use strongroom_iscsi::Digests;

use super::connections::Connections;
use super::ecl_session::EclSession;
use super::session::Session;
use crate::access::Identity;
use crate::admin::{
    ActivityReport, ConnectionReport, LeaseReport, SessionReport, VerificationReport, VolumeReport, WaitingReport,
};
use crate::names::{VolumeName, for_log};
use crate::settings::Settings;
use crate::unit::{AbsentReader, PendingImage, Unit};

pub(super) fn session_report(
    session: &Session,
    connections: &Connections,
    (settings, worker, now): (&Settings, usize, Instant),
) -> SessionReport {
    let done = session.machine.statistics();
    let mut links = session.connections.iter().filter_map(|(_, key)| connections.get(*key));
    let peer = &session.peer;
    SessionReport {
        id: session.key.0,
        address: links.next().map_or((peer.address, 0).into(), |connection| connection.peer),
        peer: settings.rules.peer_name(&peer.identity).map(str::to_owned),
        initiator: for_log(&peer.initiator_name),
        volume: session.volume().map(ToString::to_string),
        read_only: session.read_only,
        scheme: peer.scheme.map_or("S0", Scheme::name).to_owned(),
        transport: session.machine.transport().to_owned(),
        ecl: session.machine.ecl().map(EclSession::report),
        age_s: now.saturating_duration_since(session.since).as_secs_f64(),
        keys: agreed_keys(session),
        connections: connection_reports(session, connections),
        queue_depth: settings.config.limits.queue_depth,
        worker,
        in_flight: session.machine.executing().saturating_sub(session.commands.waiting()),
        waiting: session.commands.waiting(),
        commands: done.commands,
        bytes_read: done.bytes_read,
        bytes_written: done.bytes_written,
        rejects: done.rejects,
    }
}

/// What the login negotiated, by the keys of RFC 7143 §13.
fn agreed_keys(session: &Session) -> Vec<(String, String)> {
    let Some(machine) = session.machine.iscsi() else { return Vec::new() };
    let agreed = machine.session_keys();
    let yes = |value: bool| if value { "Yes" } else { "No" }.to_owned();
    let keys = [
        ("MaxRecvDataSegmentLength", agreed.recv_segment_bytes_max.to_string()),
        ("MaxRecvDataSegmentLength (initiator)", agreed.send_segment_bytes_max.to_string()),
        ("FirstBurstLength", agreed.first_burst_bytes.to_string()),
        ("MaxBurstLength", agreed.max_burst_bytes.to_string()),
        ("InitialR2T", yes(agreed.initial_r2t)),
        ("ImmediateData", yes(agreed.immediate_data)),
        ("MaxOutstandingR2T", agreed.max_outstanding_r2t.to_string()),
        ("MaxConnections", agreed.connections_max.to_string()),
        ("ErrorRecoveryLevel", agreed.error_recovery_level.to_string()),
    ];
    keys.map(|(key, value)| (key.to_owned(), value)).to_vec()
}

fn connection_reports(session: &Session, connections: &Connections) -> Vec<ConnectionReport> {
    let reports = session.connections.iter().filter_map(|(id, key)| {
        let connection = connections.get(*key)?;
        let machine = session.machine.iscsi();
        let digests = match machine {
            Some(machine) => machine.agreed(*id)?.digests,
            None => Digests::default(),
        };
        let crc = |on: bool| if on { "CRC32C" } else { "None" }.to_owned();
        let (rekeys, peer_rekeys) = connection.link.rekeys();
        Some(ConnectionReport {
            rekeys,
            peer_rekeys,
            cid: machine.map_or(Some(0), |machine| machine.cid(*id))?,
            address: connection.peer,
            suite: connection.link.suite().map(|suite| suite.to_string()),
            header_digest: crc(digests.header),
            data_digest: crc(digests.data),
        })
    });
    reports.collect()
}

pub(super) fn volume_report(name: &VolumeName, unit: &Unit, (settings, worker): (&Settings, usize)) -> VolumeReport {
    let (volume, background) = (unit.volume(), unit.background());
    let scrub = unit.store().scrub().report();
    VolumeReport {
        name: name.to_string(),
        kind: volume.kind_text(),
        size_bytes: volume.geometry.bytes(),
        block_size: volume.geometry.block_size.bytes(),
        worker,
        sessions: unit.users().len(),
        in_flight: unit.in_flight(),
        io: unit.store().io_kind().to_string(),
        io_reason: unit.store().io_reason(),
        retention_blocks: unit.store().info().retention_blocks,
        store: unit.store().stats().into(),
        bad_blocks: scrub.bad_blocks.iter().map(|lba| lba.0).collect(),
        verification: background.verifier.map(|verifier| {
            let done = verifier.report(unit.store().stats().written_bytes);
            VerificationReport { opened: done.opened, next: done.next, is_done: done.is_done, bad_blocks: done.bad }
        }),
        activity: ActivityReport {
            scrub: scrub.position,
            leases: background.lease_holders.filter_map(LeaseReport::of).collect(),
        },
        waiting: unit.pending_image().map(|pending| waiting_report(&pending, unit, settings)),
    }
}

fn waiting_report(pending: &PendingImage, unit: &Unit, settings: &Settings) -> WaitingReport {
    let shown = unit.store().snapshots().into_iter().find(|info| info.id == pending.shown);
    let session = |(name, identity): &(Arc<str>, Identity)| {
        settings.rules.peer_name(identity).map_or_else(|| for_log(name), str::to_owned)
    };
    let absent = |absent: &AbsentReader| {
        let who = absent.initiator_name.as_deref().map_or_else(|| "some from before the restart".to_owned(), for_log);
        format!("{who} (connection lost, {} s to come back)", absent.left_s)
    };
    WaitingReport {
        shown: shown.map_or_else(String::new, |info| info.name),
        sessions: pending.sessions.iter().map(session).collect(),
        absent: pending.absent.iter().map(absent).collect(),
    }
}
