//! Threads on cores: which processors we may use, pinning a thread to one, and names that `top -H` and `perf` show.

use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::NetError;

/// The processors that this process may run on, in ascending order. Never empty.
pub fn available_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        let count = thread::available_parallelism().map_or(1, |count| count.get());
        return (0..count).collect();
    };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Keeps the calling thread on one processor: warm caches, interrupts on the same processor, and stable measurements.
pub fn pin_current_thread(cpu: usize) -> Result<(), NetError> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(NetError::system(
            "pin a thread: there is no such processor",
            std::io::Error::from(std::io::ErrorKind::InvalidInput),
        ));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
        .map_err(|source| NetError::system("pin a thread to a processor (is it online and allowed?)", source))
}

/// The name of the `index`th thread of a kind, cut to what Linux keeps (15 bytes): `target-3`.
pub fn thread_name(kind: &str, index: usize) -> String {
    let number = format!("-{index}");
    let kept = kind.len().min(15usize.saturating_sub(number.len()));
    let kept = (0..=kept).rev().find(|&end| kind.is_char_boundary(end)).unwrap_or(0);
    format!("{}{number}", &kind[..kept])
}

/// Starts a named thread, pinned to `cpu` if one is given. A refused pin is logged, not fatal: the work still gets done.
pub fn spawn_on_cpu<T: Send + 'static>(
    name: String,
    cpu: Option<usize>,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<thread::JoinHandle<T>, NetError> {
    let label = name.clone();
    thread::Builder::new()
        .name(name)
        .spawn(move || {
            if let Some(cpu) = cpu
                && let Err(error) = pin_current_thread(cpu)
            {
                tracing::warn!(thread = %label, cpu, %error, "runs unpinned");
            }
            body()
        })
        .map_err(|source| NetError::system("start a thread", source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_sees_one_processor() {
        let cpu = *available_cpus().last().expect("at least one processor");
        let seen = spawn_on_cpu(thread_name("pinned", 0), Some(cpu), move || {
            (available_cpus(), thread::current().name().map(str::to_owned))
        })
        .unwrap()
        .join()
        .unwrap();
        assert_eq!(seen, (vec![cpu], Some("pinned-0".to_owned())));
    }

    #[test]
    fn names_fit_in_what_linux_keeps() {
        assert_eq!(thread_name("target", 12), "target-12");
        assert_eq!(thread_name("a-very-long-kind-of-thread", 7).len(), 15);
        assert_eq!(thread_name("ééééééééé", 10), "éééééé-10");
        assert!(pin_current_thread(100_000).is_err());
    }
}
