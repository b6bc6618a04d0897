//! The JSON of a harness: what it says of a call, and how it is told to deny one.
//!
//! The hooks of Claude Code, whose form Codex has too: <https://code.claude.com/docs/en/hooks>.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::json;

/// The members of a tool's input that name the file which it writes.
const FILES: [&str; 2] = ["file_path", "notebook_path"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Harness {
    ClaudeCode,
}

/// What a harness says.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) session: String,
    pub(super) event: Event,
    /// The directory in which the agent works.
    pub(super) directory: PathBuf,
    /// The file of the call.
    pub(super) file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Before,
    After,
    /// The agent has ended its work, or its session.
    End,
    Other,
}

impl Call {
    /// The call's session, for people.
    pub(super) fn name(&self, harness: Harness) -> String {
        let Harness::ClaudeCode = harness;
        let short: String = self.session.chars().take(8).collect();
        format!("claude-code {short}")
    }
}

impl Harness {
    pub(super) fn read(self, text: &str) -> Result<Call, String> {
        #[derive(Deserialize)]
        struct Input {
            session_id: String,
            hook_event_name: String,
            #[serde(default)]
            cwd: PathBuf,
            #[serde(default)]
            tool_input: serde_json::Value,
        }
        let Self::ClaudeCode = self;
        let input: Input = serde_json::from_str(text)
            .map_err(|error| format!("standard input is not the JSON of a hook: {error}"))?;
        let file = FILES.iter().map(|name| &input.tool_input[name]).find(|file| !file.is_null());
        let file = match file.map(|file| file.as_str().ok_or("the file of the call is no text")) {
            Some(text) => Some(PathBuf::from(text?)),
            None => None,
        };
        Ok(Call {
            session: input.session_id,
            event: match &*input.hook_event_name {
                "PreToolUse" => Event::Before,
                "PostToolUse" => Event::After,
                "Stop" | "SessionEnd" => Event::End,
                _ => Event::Other,
            },
            directory: input.cwd,
            file,
        })
    }

    /// The line that denies a call, or after it tells the agent what it has to know.
    pub(super) fn deny(self, call: &Call, why: &str) -> String {
        let Self::ClaudeCode = self;
        let answer = match call.event {
            Event::Before => json!({ "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": why,
            } }),
            _ => json!({ "decision": "block", "reason": why }),
        };
        format!("{answer}\n")
    }
}
