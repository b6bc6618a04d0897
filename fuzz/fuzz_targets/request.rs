#![no_main]

#[path = "../inputs/request.rs"]
mod request;

libfuzzer_sys::fuzz_target!(|input: &[u8]| request::judge(input));
