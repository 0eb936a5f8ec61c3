//! Count words. stdin: {"text": "…", "report_to": "topic"}; stdout: {"words": 3, "longest": "…"}. If report_to is given, the
//! module enqueues a job of that topic with the result. Only the standard library is used: real modules take serde_json.

use std::io::{Read, Write};

mod rowlock {
    #[link(wasm_import_module = "rowlock")]
    extern "C" {
        fn log(level: i32, message: *const u8, length: usize);
        fn fail(message: *const u8, length: usize) -> !;
        fn enqueue(job: *const u8, length: usize, answer: *mut u8, room: usize) -> i32;
    }

    pub fn info(message: &str) {
        unsafe { log(1, message.as_ptr(), message.len()) }
    }

    pub fn fail_for_good(message: &str) -> ! {
        unsafe { fail(message.as_ptr(), message.len()) }
    }

    /// The answer {"id": …}, or the error {"code": …, "message": …}, as JSON.
    pub fn enqueue_job(job: &str) -> Result<String, String> {
        let mut answer = [0u8; 1024];
        let length = unsafe { enqueue(job.as_ptr(), job.len(), answer.as_mut_ptr(), answer.len()) };
        let text = String::from_utf8_lossy(&answer[..length.unsigned_abs() as usize]).into_owned();
        if length > 0 { Ok(text) } else { Err(text) }
    }
}

/// The value of a text field, with its simple escapes.
fn field(json: &str, name: &str) -> Option<String> {
    let quoted = format!("\"{}\":\"", name);
    let mut letters = json[json.find(&quoted)? + quoted.len()..].chars();
    let mut value = String::new();
    loop {
        match letters.next()? {
            '"' => return Some(value),
            '\\' => value.push(match letters.next()? {
                'n' | 't' | 'r' => ' ',
                other => other,
            }),
            letter => value.push(letter),
        }
    }
}

fn main() {
    let mut json = String::new();
    if std::io::stdin().read_to_string(&mut json).is_err() {
        rowlock::fail_for_good("the payload is not UTF-8");
    }
    let text = match field(&json, "text") {
        Some(text) => text,
        None => rowlock::fail_for_good("text: is missing"),
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let longest = words.iter().max_by_key(|word| word.chars().count()).unwrap_or(&"");
    let result = format!("{{\"words\":{},\"longest\":{:?}}}", words.len(), longest);
    rowlock::info(&format!("{} words", words.len()));
    if let Some(topic) = field(&json, "report_to") {
        let job = format!("{{\"topic\":{:?},\"payload\":{}}}", topic, result);
        if let Err(error) = rowlock::enqueue_job(&job) {
            eprintln!("not enqueued: {}", error);
            std::process::exit(1);
        }
    }
    let _ = std::io::stdout().write_all(result.as_bytes());
}
