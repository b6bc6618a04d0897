//! Processor time in microseconds, as Linux tells it under /proc.

use std::fs;

/// What Linux counts processor time in, on every architecture in use.
const MICROS_PER_TICK: f64 = 10_000.0;

/// What a process has used.
pub(crate) fn of(pid: u32) -> f64 {
    // `utime` and `stime`.
    sum_of_stat(&format!("/proc/{pid}/stat"), 14)
}

/// What those children of this process have used that have ended.
pub(crate) fn of_ended_children() -> f64 {
    // `cutime` and `cstime`.
    sum_of_stat("/proc/self/stat", 16)
}

/// What all processes have used, and the kernel for them.
pub(crate) fn of_all() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let numbers: Vec<f64> = stat
        .lines()
        .next()
        .unwrap()
        .split_ascii_whitespace()
        .skip(1)
        .map(|number| number.parse().unwrap())
        .collect();
    // user, nice, system, (idle, iowait,) irq, softirq, steal
    let [user, nice, system, _, _, irq, softirq, steal, ..] = numbers[..] else {
        panic!("/proc/stat begins with {stat}")
    };
    (user + nice + system + irq + softirq + steal) * MICROS_PER_TICK
}

/// The sum of the numbered field and its successor, as proc(5) numbers them.
fn sum_of_stat(path: &str, field: usize) -> f64 {
    let stat = fs::read_to_string(path).unwrap();
    // The name, which may hold anything, is the second field.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_ascii_whitespace().skip(field - 3).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() * MICROS_PER_TICK
}
