//! Proves that a transport keeps the promises of `strongroom_scsi::transport` to the engine and to the logical unit. The tests know no
//! transport: each implementation gives two sessions that are joined in memory, and runs all of them.

#[path = "transport/ecl.rs"]
mod ecl;
#[path = "transport/iscsi.rs"]
mod iscsi;
#[path = "transport/suite.rs"]
mod suite;

/// All tests of the suite for one implementation of [`suite::Pair`].
macro_rules! transport_tests {
    ($transport:ident, $pair:ty) => {
        transport_tests!(
            $transport, $pair:
            a_read_returns_what_the_unit_gave,
            a_write_arrives_whole_and_in_order,
            residuals_are_exact,
            status_and_sense_arrive,
            sealed_writes_arrive_with_a_record_per_block,
            sealed_reads_arrive_with_records_and_holes,
            parameters_survive,
            a_response_says_where_a_write_was_stored,
            commands_arrive_in_the_order_of_their_submission,
            an_aborted_task_is_not_answered,
            a_reset_ends_every_task_of_the_unit,
            a_refused_function_ends_nothing,
            a_query_is_answered,
            tasks_that_another_session_ended_are_answered,
            the_end_of_a_session_ends_its_tasks,
            a_logout_ends_the_session,
            a_drain_asks_for_a_logout,
            malformed_commands_are_not_sent,
            the_queue_has_a_limit,
        );
    };
    ($transport:ident, $pair:ty: $($test:ident),+ $(,)?) => {
        mod $transport {
            $(
                #[test]
                fn $test() {
                    super::suite::$test::<$pair>();
                }
            )+
        }
    };
}

transport_tests!(over_iscsi, crate::iscsi::IscsiPair);
transport_tests!(over_ecl, crate::ecl::EclPair);
