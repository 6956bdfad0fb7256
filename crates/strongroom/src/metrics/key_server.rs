//! The metrics of a key server. Names of volumes and identities are in its audit log, and not here.

use strongroom_keyserver::{KeyServerReport, Role};
use strongroom_metrics::Exposition;

strongroom_metrics::metrics! { #[cfg(test)] ALL:
    BUILD = gauge "strongroom_keyserver_build_info" ["version"] "Always 1; the program's version is a label.";
    CONNECTIONS = gauge "strongroom_keyserver_connections" [] "Connections that are open.";
    REFUSED = counter "strongroom_keyserver_connections_refused" [] "Connections refused: too many, unknown identities, handshakes that failed.";
    REQUESTS = counter "strongroom_keyserver_requests" ["kind", "result"] "Requests answered.";
    LATENCY = histogram "strongroom_keyserver_request_seconds" ["kind"] "Time in which a request was carried out; a standby's confirmation is in it.";
    HELD_LINES = gauge "strongroom_keyserver_audit_lines_held" [] "Lines of the audit log that could not be written yet; above 0: mend the disk.";
    LINES = counter "strongroom_keyserver_audit_lines" [] "Lines of the audit log, those from before the start included.";
    VOLUMES = gauge "strongroom_keyserver_volumes" [] "Volumes with keys.";
    TRANSACTIONS = counter "strongroom_keyserver_transactions" [] "Transactions stored, those from before the start included.";
    STANDBY = counter "strongroom_keyserver_standby_transactions" [] "Transactions that the standby has stored; absent while none follows.";
    GENERATION = gauge "strongroom_keyserver_generation" [] "Promotions so far, and one.";
    ROLE = gauge "strongroom_keyserver_role" ["role"] "1 for the role that this server has.";
    LEASE = gauge "strongroom_keyserver_lease_seconds" [] "How long initiators may go on with their keys while they cannot reach a key server.";
}

/// The metrics of a key server at one moment.
pub(crate) fn exposition(report: &KeyServerReport) -> Exposition {
    let mut exposition = Exposition::default();
    let (out, status) = (&mut exposition, &report.status);
    out.add(&BUILD, &[env!("CARGO_PKG_VERSION")], 1_u64);
    out.add(&CONNECTIONS, &[], report.connections);
    out.add(&REFUSED, &[], report.connections_refused);
    for (kind, result, count) in &report.requests {
        out.add(&REQUESTS, &[kind, result], *count);
    }
    for (kind, histogram) in &report.latencies {
        super::add_latency(out, &LATENCY, kind, histogram);
    }
    out.add(&HELD_LINES, &[], report.audit_lines_held);
    out.add(&LINES, &[], status.head.lines);
    out.add(&VOLUMES, &[], status.volumes);
    out.add(&TRANSACTIONS, &[], status.sequence);
    out.add_known(&STANDBY, &[], status.standby_sequence);
    out.add(&GENERATION, &[], status.generation);
    for (name, role) in [("primary", Role::Primary), ("standby", Role::Standby), ("fenced", Role::Fenced)] {
        out.add(&ROLE, &[name], status.role == role);
    }
    out.add(&LEASE, &[], report.lease.as_secs_f64());
    exposition
}
