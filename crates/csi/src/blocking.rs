//! Work that blocks, beside the runtime: requests to the target and commands of the program, a bounded number at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::Status;

/// See the module.
#[derive(Clone)]
pub(crate) struct Blocking(Arc<Semaphore>);

impl Blocking {
    /// That many at the same time.
    pub(crate) fn new(at_a_time: usize) -> Blocking {
        Blocking(Arc::new(Semaphore::new(at_a_time)))
    }

    /// Does the work in a thread of its own. It is done to its end even if the caller is gone.
    ///
    /// # Errors
    /// What the work says.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let ended = |_| Status::internal("the work ended early; the driver's log says more");
        let turn = self.0.clone().acquire_owned().await.map_err(|_| Status::unavailable("the driver is ending"))?;
        let work = move || {
            let outcome = work();
            drop(turn);
            outcome
        };
        tokio::task::spawn_blocking(work).await.map_err(ended)?
    }
}
