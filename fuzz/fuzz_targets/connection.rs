#![no_main]

#[path = "../inputs/connection.rs"]
mod connection;

libfuzzer_sys::fuzz_target!(|input: &[u8]| connection::judge(input));
