//! The metrics of an attachment: from the status of its device. Its volume is a label of one metric alone, since a process has one volume.

use std::sync::{Arc, OnceLock};

use strongroom_block::{CryptoBytes, CryptoCounters};
use strongroom_initiator::{
    ConnectionStatus, EngineCounters, KeyStatus, PacketStatus, PipelineStatus, RemoteDevice, RequestReport, Transport,
    VolumeUrl, WriteLosses,
};
use strongroom_metrics::Exposition;

use super::{add_crypto, add_latencies, seconds};

strongroom_metrics::metrics! { #[cfg(test)] ALL:
    BUILD = gauge "strongroom_attachment_build_info" ["version"] "Always 1; the program's version is a label.";
    VOLUME = gauge "strongroom_attachment_info" ["volume", "transport"] "Always 1; the volume's name and what carries it are labels.";
    CONNECTED = gauge "strongroom_attachment_connected" [] "1 if there is a session with the target.";
    CLIENTS = gauge "strongroom_attachment_clients" [] "Clients connected to an NBD or vhost-user server; absent elsewhere.";
    SESSIONS = counter "strongroom_attachment_sessions" [] "Sessions made with the target.";
    CONNECTIONS = gauge "strongroom_attachment_connections" [] "Connections of the session.";
    LATENCY = histogram "strongroom_attachment_request_seconds" ["operation"] "Time that a request was with the engine, reconnecting and resending included.";
    ERRORS = counter "strongroom_attachment_request_errors" ["kind"] "Requests that failed, by the kind of their error.";
    READ = counter "strongroom_attachment_read_bytes" [] "Bytes of blocks read, those fetched ahead included.";
    WRITTEN = counter "strongroom_attachment_written_bytes" [] "Bytes of blocks written.";
    UNFLUSHED = gauge "strongroom_attachment_unflushed_bytes" [] "Bytes written that the target has acknowledged and not made durable.";
    LOST_WRITES = counter "strongroom_attachment_lost_writes" [] "Writes that failed.";
    LOST_FLUSHES = counter "strongroom_attachment_lost_flushes" [] "Flushes that failed.";
    LEASE_LOST = gauge "strongroom_attachment_writer_lease_lost" [] "1 if another initiator has taken the volume over: nothing can be written any more.";
    COMMANDS = counter "strongroom_attachment_commands_sent" [] "SCSI commands sent, those sent again included.";
    RESENT = counter "strongroom_attachment_commands_resent" [] "SCSI commands sent again.";
    REPLAYED = counter "strongroom_attachment_blocks_replayed" [] "Blocks sent again to a target that may have lost them.";
    SUPERSEDED = counter "strongroom_attachment_blocks_superseded" [] "Replayed blocks that the target left out because something newer was stored there.";
    REPEATED = counter "strongroom_attachment_writes_repeated" [] "Writes sent again that the target had executed before.";
    GUARDED = counter "strongroom_attachment_conditional_writes_retried" [] "Conditional writes that found another version and were tried again.";
    OWN_FLUSHES = counter "strongroom_attachment_own_flushes" [] "Flushes made to bound what would have to be replayed.";
    UNREADABLE = counter "strongroom_attachment_blocks_unreadable" [] "Blocks that did not authenticate, or could not be read.";
    UNAUTHENTIC = counter "strongroom_attachment_blocks_unauthentic" [] "Blocks that did not authenticate and were fetched again.";
    REFETCH_CONNECTIONS = counter "strongroom_attachment_refetch_connections" [] "Connections ended to fetch such blocks over a new one.";
    REFETCHED = counter "strongroom_attachment_refetches_succeeded" [] "Commands whose blocks authenticated when they were fetched again: damaged on the way.";
    RECOVERED = counter "strongroom_attachment_older_version_reads" [] "Reads of blocks in an older version, because the newest does not open.";
    FEEDBACK = gauge "strongroom_attachment_feedback_pending_versions" [] "Versions that opened and of which the target was not told yet.";
    CRYPTO = counter "strongroom_attachment_crypto_bytes" ["work"] "Bytes of cryptography for channels and seals.";
    REKEYS = gauge "strongroom_attachment_channel_rekeys" ["side"] "How often either side has changed the keys of the connections that there are.";
    QUANTUM = gauge "strongroom_attachment_ecl_quantum_bytes" [] "Bytes in a quantum.";
    PACKET = gauge "strongroom_attachment_ecl_packet_bytes" [] "Longest packet that the path takes, as far as is known.";
    PACKETS_SENT = counter "strongroom_attachment_ecl_packets_sent" [] "ECL packets sent by the association, or by the last one.";
    PACKETS_LOST = counter "strongroom_attachment_ecl_packets_lost" [] "ECL packets sent that counted as lost.";
    BLACK_HOLES = counter "strongroom_attachment_ecl_black_holes" [] "Times that ECL packets had to become shorter, because longer ones vanished.";
    PACKETS_RECEIVED = counter "strongroom_attachment_ecl_packets_received" [] "ECL packets received and used.";
    BLOCKS_RECEIVED = counter "strongroom_attachment_ecl_received_bytes" [] "Bytes of sealed blocks received over ECL.";
    BLOCKS_COPIED = counter "strongroom_attachment_ecl_copied_bytes" [] "Of those, bytes that were copied after they had been received.";
    ROUND_TRIP = gauge "strongroom_attachment_ecl_round_trip_seconds" [] "Smoothed round trip of the association.";
    ROUND_TRIP_MIN = gauge "strongroom_attachment_ecl_round_trip_min_seconds" [] "Smallest round trip of the association.";
    WINDOW = gauge "strongroom_attachment_ecl_window_bytes" [] "Congestion window of the association.";
    DEPTH = gauge "strongroom_attachment_pipeline_depth" [] "Writes that may be under way at once; absent where nothing limits them but the queues.";
    PIPELINE_WINDOW = gauge "strongroom_attachment_pipeline_window_bytes" [] "Bytes of writes that may be under way at once.";
    SEALING_THREADS = gauge "strongroom_attachment_sealing_threads" [] "Threads that seal; 0: the submitter of a write seals it.";
    WRITE_ROUND_TRIP = gauge "strongroom_attachment_write_round_trip_seconds" [] "Round trip of a write, the target's work included.";
    PATH_ROUND_TRIP = gauge "strongroom_attachment_path_round_trip_seconds" [] "Round trip that TCP measures.";
    LINK_RATE = gauge "strongroom_attachment_link_bytes_per_second" [] "What the link carries of block data.";
    SEAL_RATE = gauge "strongroom_attachment_seal_bytes_per_second" [] "What one thread seals.";
    POLLS = counter "strongroom_attachment_busy_polls" ["thread", "outcome"] "Looks for work before a sleep, by what came of them.";
    POLL_TIME = counter "strongroom_attachment_busy_poll_seconds" ["thread"] "Time spent looking for work before a sleep.";
    EPOCH = gauge "strongroom_attachment_key_epoch" [] "Epoch that new writes are sealed under, where a key server lends the keys.";
    EPOCHS = gauge "strongroom_attachment_key_epochs" [] "Epochs that can be opened; 0 while the keys are gone.";
    KEY_LEASE = gauge "strongroom_attachment_key_lease_seconds" [] "How long the keys may still be used if the key server says nothing more.";
    KEY_TROUBLE = gauge "strongroom_attachment_key_server_failed" [] "1 if the key server could last not be asked, or refused.";
}

/// Tells how many clients a front end has now.
pub(crate) type ClientCounter = Box<dyn Fn() -> usize + Send + Sync>;

/// What is measured of an attachment.
pub(crate) struct AttachmentSource {
    device: Arc<RemoteDevice>,
    crypto: Arc<CryptoCounters>,
    volume: String,
    transport: &'static str,
    /// Set once there is a front end that has clients.
    clients: Arc<OnceLock<ClientCounter>>,
}

impl AttachmentSource {
    /// `crypto`: counts the cryptography of this process.
    pub(crate) fn new(url: &VolumeUrl, device: &Arc<RemoteDevice>, crypto: Arc<CryptoCounters>) -> AttachmentSource {
        let transport = match url.transport() {
            Transport::Iscsi => "iscsi",
            Transport::Ecl => "ecl",
            Transport::EclTcp => "ecl+tcp",
        };
        let (device, volume) = (Arc::clone(device), url.file_name().to_owned());
        AttachmentSource { device, crypto, volume, transport, clients: Arc::default() }
    }

    /// Where a front end that has clients says how they are counted.
    pub(crate) fn clients(&self) -> Arc<OnceLock<ClientCounter>> {
        Arc::clone(&self.clients)
    }

    /// Its metrics at this moment.
    pub(crate) fn exposition(&self) -> Exposition {
        let mut exposition = Exposition::default();
        let (out, device) = (&mut exposition, &self.device);
        out.add(&BUILD, &[env!("CARGO_PKG_VERSION")], 1_u64);
        out.add(&VOLUME, &[&self.volume, self.transport], 1_u64);
        if let Some(count) = self.clients.get() {
            out.add(&CLIENTS, &[], count() as u64);
        }
        add_status(out, &device.status());
        add_requests(out, &device.requests());
        add_losses(out, &device.losses());
        out.add(&RECOVERED, &[], device.previous_reads().count);
        add_crypto(out, &CRYPTO, self.crypto());
        if let Some(keys) = device.key_status() {
            add_keys(out, &keys);
        }
        exposition
    }

    fn crypto(&self) -> CryptoBytes {
        self.crypto.snapshot()
    }
}

fn add_status(out: &mut Exposition, status: &ConnectionStatus) {
    out.add(&CONNECTED, &[], status.is_connected);
    out.add(&SESSIONS, &[], status.connections);
    out.add(&CONNECTIONS, &[], status.wires);
    out.add(&UNFLUSHED, &[], status.unflushed_bytes);
    out.add(&FEEDBACK, &[], status.feedback_pending);
    out.add(&LEASE_LOST, &[], status.lease_lost.is_some());
    out.add(&REKEYS, &["initiator"], status.rekeys);
    out.add(&REKEYS, &["target"], status.peer_rekeys);
    add_engine(out, &status.engine);
    add_pipeline(out, &status.pipeline);
    if let Some(packets) = &status.packets {
        add_packets(out, packets);
    }
    for (thread, polls) in [("device", &status.busy_poll), ("completions", &status.busy_poll_completions)] {
        for (outcome, count) in [("hit", polls.hits), ("miss", polls.misses), ("contended", polls.contended)] {
            out.add(&POLLS, &[thread, outcome], count);
        }
        out.add(&POLL_TIME, &[thread], polls.spent.as_secs_f64());
    }
}

fn add_requests(out: &mut Exposition, requests: &RequestReport) {
    add_latencies(out, &LATENCY, &requests.latencies);
    for (kind, count) in &requests.errors {
        out.add(&ERRORS, &[kind], *count);
    }
    out.add(&READ, &[], requests.read_bytes);
    out.add(&WRITTEN, &[], requests.written_bytes);
}

fn add_losses(out: &mut Exposition, losses: &WriteLosses) {
    out.add(&LOST_WRITES, &[], losses.writes);
    out.add(&LOST_FLUSHES, &[], losses.flushes);
}

fn add_engine(out: &mut Exposition, engine: &EngineCounters) {
    out.add(&COMMANDS, &[], engine.commands_sent);
    out.add(&RESENT, &[], engine.commands_resent);
    out.add(&REPLAYED, &[], engine.blocks_replayed);
    out.add(&SUPERSEDED, &[], engine.blocks_superseded);
    out.add(&REPEATED, &[], engine.writes_repeated);
    out.add(&GUARDED, &[], engine.guarded_retries);
    out.add(&OWN_FLUSHES, &[], engine.own_flushes);
    out.add(&UNREADABLE, &[], engine.blocks_failed);
    out.add(&UNAUTHENTIC, &[], engine.blocks_refetched);
    out.add(&REFETCH_CONNECTIONS, &[], engine.refetch_connections);
    out.add(&REFETCHED, &[], engine.refetches_succeeded);
}

fn add_pipeline(out: &mut Exposition, pipeline: &PipelineStatus) {
    out.add_known(&DEPTH, &[], pipeline.depth);
    out.add_known(&PIPELINE_WINDOW, &[], pipeline.window_bytes);
    out.add(&SEALING_THREADS, &[], pipeline.workers);
    out.add_known(&WRITE_ROUND_TRIP, &[], seconds(pipeline.round_trip));
    out.add_known(&PATH_ROUND_TRIP, &[], seconds(pipeline.path.map(|path| path.now)));
    out.add_known(&LINK_RATE, &[], pipeline.link_bytes_per_second);
    out.add_known(&SEAL_RATE, &[], pipeline.seal_bytes_per_second);
}

fn add_packets(out: &mut Exposition, packets: &PacketStatus) {
    out.add(&QUANTUM, &[], packets.quantum_bytes);
    out.add(&PACKET, &[], packets.packet_bytes);
    out.add(&PACKETS_SENT, &[], packets.packets_sent);
    out.add(&PACKETS_LOST, &[], packets.packets_lost);
    out.add(&BLACK_HOLES, &[], packets.black_holes);
    out.add(&PACKETS_RECEIVED, &[], packets.packets_received);
    out.add(&BLOCKS_RECEIVED, &[], packets.received_bytes);
    out.add(&BLOCKS_COPIED, &[], packets.copied_bytes);
    out.add_known(&ROUND_TRIP, &[], seconds(packets.round_trip));
    out.add_known(&ROUND_TRIP_MIN, &[], seconds(packets.smallest_round_trip));
    out.add(&WINDOW, &[], packets.window_bytes);
}

fn add_keys(out: &mut Exposition, keys: &KeyStatus) {
    out.add(&EPOCH, &[], keys.epoch);
    out.add(&EPOCHS, &[], keys.epochs.len());
    out.add(&KEY_LEASE, &[], keys.lease_left.as_secs_f64());
    out.add(&KEY_TROUBLE, &[], keys.trouble.is_some());
}
