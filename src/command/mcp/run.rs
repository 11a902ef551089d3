//! `kpx mcp`

use std::path::{Path, PathBuf};

use color_eyre::eyre::{WrapErr as _, eyre};
use futures_util::future::{Either, select};
use futures_util::lock::Mutex;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    JsonObject, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
    ResourceContents, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::stdio;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::Value;
use tempfile::{NamedTempFile, TempPath};

use super::answer;
use super::args::McpArgs;
use super::dump::{LIMIT, Origin, Recording};
use super::schemas::{self, SCHEMAS};
use super::tools::{self, Call, Spec, TOOLS};
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::redaction;
use crate::command::shared::session::Session;
use crate::report::{CLEAN, UNKNOWN};
use kpx_host::OwnRun;
use kpx_judge::redact::{Named, Redactor};
use kpx_node::evidence::Evidence;

/// The media type of JSON schemas.
const SCHEMA: &str = "application/schema+json";

/// The longest text that `open` takes, in bytes.
const MOST_TEXT: usize = 16 << 20;

/// Serves questions until the client closes standard input.
pub(in crate::command) async fn run(
    session: &Session,
    io: &Io<'_>,
    args: &McpArgs,
) -> Result<u8, Failure> {
    const CLIENT: &str = "a client of the Model Context Protocol starts `kpx mcp`: `kpx explain mcp` has its configuration";
    if session
        .source
        .paths()
        .iter()
        .any(|path| path == Path::new("-"))
    {
        return Err(Failure::usage(
            "standard input has the questions, and cannot be a bundle: pass the path of a file with --from",
        ));
    }
    if io.terminal {
        return Err(
            Failure::usage("standard output is a terminal, not an MCP client").with_hint(CLIENT),
        );
    }
    let server = Server::new(session, args)?;
    let service = server.serve(stdio()).await;
    let service = service
        .wrap_err("the client did not open a session")
        .map_err(|error| Failure::from(error).with_hint(CLIENT))?;
    service.waiting().await?;
    Ok(CLEAN)
}

/// The server: one for the process.
struct Server {
    /// Options of commands that read the server's own source.
    origin: Origin,
    /// The node of `--node`.
    node: Option<String>,
    /// Options that reach any node.
    others: Vec<String>,
    /// Options of every command.
    reading: Vec<String>,
    redaction: Option<Redaction>,
    state: Mutex<State>,
}

struct Redaction {
    /// The option with which commands find the key.
    path: TempPath,
    key: [u8; 32],
}

/// The part that calls change.
#[derive(Default)]
struct State {
    /// The dump that was opened last, and the pasted text if it is one.
    opened: Option<(Origin, Option<TempPath>)>,
    recording: Option<Recording>,
    redactor: Option<Redactor>,
}

/// The answer to a call, or the error that the client sees.
type Answer = Result<(Value, Vec<String>), String>;

impl Server {
    fn new(session: &Session, args: &McpArgs) -> Result<Self, Failure> {
        let arguments = session.arguments();
        let (node, others): (Vec<String>, Vec<String>) = arguments
            .into_iter()
            .partition(|word| word.starts_with("--node="));
        let pods = session
            .pods
            .image
            .iter()
            .map(|image| format!("--image={image}"));
        let programs = session.pods.programs.iter();
        let programs = programs.map(|folder| format!("--programs={}", folder.display()));
        let others: Vec<String> = others.into_iter().chain(pods).chain(programs).collect();
        let is_reading =
            |word: &&String| word.starts_with("--timeout=") || word.starts_with("--family=");
        let reading = others.iter().filter(is_reading).cloned().collect();
        let origin = if session.source.is_bundle() {
            let mut words = others.clone();
            for path in session.source.paths() {
                words.push(from(path)?);
            }
            Origin::Dump(words)
        } else {
            Origin::Nodes([node, others.clone()].concat())
        };
        let redaction = if args.no_redact {
            None
        } else {
            let bytes = redaction::random()?;
            let file = NamedTempFile::new();
            let path = file
                .and_then(|file| std::fs::write(file.path(), bytes).map(|()| file.into_temp_path()))
                .wrap_err("cannot keep the key of the redaction in a temporary file")?;
            Some(Redaction {
                path,
                key: redaction::of(&bytes),
            })
        };
        Ok(Self {
            origin,
            node: session.name().map(str::to_owned),
            others,
            reading,
            redaction,
            state: Mutex::default(),
        })
    }

    /// Answers a call of `tool`.
    async fn answer(&self, tool: &'static Spec, given: &JsonObject) -> Answer {
        let bad = |error: String| format!("kpx: {error}\n");
        let mut call = Call::of(tool, given).map_err(bad)?;
        let state = &mut *self.state.lock().await;
        if tool.name == tools::OPEN {
            return self.open(state, &call).await;
        }
        if !tool.reads {
            let run = command(tool, &call, &[]);
            return answered(run, None).await;
        }
        let is_all = call.value(tools::ALL_NODES).is_some();
        let mut node = call.value(tools::NODE).map(str::to_owned);
        if node.is_some() && is_all {
            return Err(bad(
                "`node` names one node, and `all_nodes` means all: pass one of them".to_owned(),
            ));
        }
        let origin = self.asked(state, node.as_deref(), is_all);
        if self.redaction.is_none()
            && let Origin::Nodes(words) = &origin
        {
            return answered(command(tool, &call, words), None).await;
        }
        let mut redactor = self.redactor(&mut state.redactor);
        let recording = self.recording(&mut state.recording, &origin).await;
        let recording = recording.map_err(|error| redacted(redactor.as_deref_mut(), error))?;
        let mut options = self.reading.clone();
        let mut notes = Vec::new();
        if matches!(origin, Origin::Nodes(_)) {
            // The recording is of this node.
            node = None;
        } else if node.is_none() && !is_all && state.opened.is_none() {
            node.clone_from(&self.node);
        }
        if let (Some(name), Some(redactor)) = (&node, redactor.as_deref_mut())
            && !recording.nodes.contains(name)
        {
            node = Some(recording.meant(None, redactor, name, Named::Node)?);
        }
        match (&node, recording.nodes.as_slice()) {
            (_, [_, ..]) if is_all => options.push("--all-nodes".to_owned()),
            (None, all @ [_, ..]) => {
                return Err(bad(format!(
                    "the dump has several nodes: pass `node` ({}) or `all_nodes`",
                    all.join(", ")
                )));
            }
            (None, []) if is_all => {
                return Err(bad("the dump is of one node: omit `all_nodes`".to_owned()));
            }
            (Some(node), _) => options.push(format!("--node={node}")),
            (None, []) => {}
        }
        if let Some(redactor) = redactor {
            call.rename(|word, named| {
                let new = recording.meant(node.as_deref(), redactor, word, named)?;
                if new != word {
                    notes.push(format!(
                        "Names and addresses are redacted: {word} is {new} here."
                    ));
                }
                Ok(new)
            })?;
        }
        let run = command(tool, &call, &options);
        let (value, more) = answered(run, Some(recording)).await?;
        notes.extend(more);
        Ok((value, notes))
    }

    /// Opens the dump that `call` names, or the server's own source.
    async fn open(&self, state: &mut State, call: &Call) -> Answer {
        let opened = match (call.value(tools::PATH), call.value(tools::TEXT)) {
            (Some(_), Some(_)) => {
                return Err("kpx: `path` and `text` are both given: pass one of them\n".to_owned());
            }
            (Some(path), None) => {
                let path = from(Path::new(path)).map_err(|failure| format!("kpx: {failure}\n"))?;
                Some((self.dump(path), None))
            }
            (None, Some(text)) if text.len() > MOST_TEXT => {
                return Err("kpx: `text` is larger than 16 MiB\n  hint: write it to a file, and pass its `path`\n".to_owned());
            }
            (None, Some(text)) => {
                let failed = |error: std::io::Error| {
                    format!("kpx: cannot keep the text in a temporary file\n  because {error}\n")
                };
                let file = tempfile::Builder::new()
                    .prefix("paste-")
                    .suffix(".txt")
                    .tempfile();
                let file = file.map_err(failed)?;
                std::fs::write(file.path(), text).map_err(failed)?;
                let path = from(file.path()).map_err(|failure| format!("kpx: {failure}\n"))?;
                Some((self.dump(path), Some(file.into_temp_path())))
            }
            (None, None) => None,
        };
        let origin = opened
            .as_ref()
            .map_or(&self.origin, |(origin, _)| origin)
            .clone();
        let recording = Recording::make(origin, &self.snapshot_options()).await;
        let recording =
            recording.map_err(|error| redacted(self.redactor(&mut state.redactor), error))?;
        let recording = &*state.recording.insert(recording);
        state.opened = opened;
        let mut arguments = self.reading.clone();
        arguments.extend(["snapshot", "--output=json"].map(str::to_owned));
        if recording.nodes.len() > 1 {
            arguments.push("--all-nodes".to_owned());
        }
        let folder = tempfile::tempdir()
            .map_err(|error| format!("kpx: cannot make a temporary folder\n  because {error}\n"))?;
        let run = OwnRun {
            arguments,
            folder: Some(folder.path().to_owned()),
            from: None,
        };
        let (mut report, notes) = answered(run, Some(recording)).await?;
        // The command wrote a file that was deleted with its folder.
        place(&mut report, &recording.path);
        Ok((report, notes))
    }

    /// Returns a dump that is read with the options of the server.
    fn dump(&self, from: String) -> Origin {
        Origin::Dump([&self.reading[..], &[from]].concat())
    }

    /// Returns the source for a question about `node`: the dump, or live nodes.
    fn asked(&self, state: &State, node: Option<&str>, is_all: bool) -> Origin {
        let origin = state
            .opened
            .as_ref()
            .map_or(&self.origin, |(origin, _)| origin);
        match (origin, node) {
            (Origin::Nodes(_), Some(node)) => {
                Origin::Nodes([&self.others[..], &[format!("--node={node}")]].concat())
            }
            (Origin::Nodes(_), None) if is_all => {
                Origin::Nodes([&self.others[..], &["--all-nodes".to_owned()]].concat())
            }
            _ => origin.clone(),
        }
    }

    /// Returns the recording of `origin`, which `kept` may have.
    async fn recording<'k>(
        &self,
        kept: &'k mut Option<Recording>,
        origin: &Origin,
    ) -> Result<&'k Recording, String> {
        let recording = match kept.take() {
            Some(recording) if recording.is_of(origin) => recording,
            _ => Recording::make(origin.clone(), &self.snapshot_options()).await?,
        };
        Ok(kept.insert(recording))
    }

    fn snapshot_options(&self) -> Vec<String> {
        let Some(redaction) = &self.redaction else {
            return Vec::new();
        };
        vec![
            "--redact".to_owned(),
            format!("--redact-key={}", redaction.path.display()),
        ]
    }

    /// Returns the redactor, if names are replaced.
    fn redactor<'s>(&self, kept: &'s mut Option<Redactor>) -> Option<&'s mut Redactor> {
        let redaction = self.redaction.as_ref()?;
        Some(kept.get_or_insert_with(|| Redactor::new(redaction.key, &Evidence::default())))
    }
}

/// Returns the command that answers `call` of `tool`, with `options`.
fn command(tool: &Spec, call: &Call, options: &[String]) -> OwnRun {
    let mut arguments: Vec<String> = tool.command.iter().map(|word| (*word).to_owned()).collect();
    let (given, last) = call.words();
    arguments.extend_from_slice(options);
    arguments.extend(given);
    arguments.push("--output=json".to_owned());
    if !last.is_empty() {
        arguments.push("--".to_owned());
        arguments.extend(last);
    }
    OwnRun {
        arguments,
        folder: None,
        from: None,
    }
}

/// Returns `error`, which kpx printed before anything was redacted.
fn redacted(redactor: Option<&mut Redactor>, error: String) -> String {
    match redactor {
        Some(redactor) => redactor.reason(&error),
        None => error,
    }
}

/// Returns the option that reads `path` in the same way for the server and its commands.
fn from(path: &Path) -> Result<String, Failure> {
    let path: PathBuf = std::path::absolute(path)
        .wrap_err_with(|| format!("cannot use the path {}", path.display()))?;
    match path.to_str() {
        Some(path) => Ok(format!("--from={path}")),
        None => Err(eyre!("the path {} is not UTF-8", path.display()).into()),
    }
}

/// Makes `path` the source of the reports of a recording in `report`, which may have several.
fn place(report: &mut Value, path: &Path) {
    match report {
        Value::Object(fields) => {
            for (name, of) in fields {
                if name == "path" {
                    *of = Value::String(path.display().to_string());
                } else {
                    place(of, path);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|item| place(item, path)),
        _ => {}
    }
}

/// Returns the error `said` of a command in the words of the client, which did not name the bundle at `path`.
fn in_words_of_client(said: &str, path: &Path) -> String {
    let path = path.display().to_string();
    let is_of_client = |line: &&str| !line.trim_start().starts_with("hint: set by KPX_");
    let lines: Vec<&str> = said.lines().filter(is_of_client).collect();
    (lines.join("\n") + "\n")
        .replace(&format!("bundle {path}"), "the dump")
        .replace(&path, "the dump")
        .replace("--all-nodes", "`all_nodes`")
        .replace("--node", "`node`")
}

/// Runs `run` on `recording`, and returns the report that it prints, and which lists were cut.
async fn answered(mut run: OwnRun, recording: Option<&Recording>) -> Answer {
    run.from = recording.map(|recording| recording.path.clone());
    let output = run.output(LIMIT).await;
    let output =
        output.map_err(|error| format!("kpx: the command did not end\n  because {error}\n"))?;
    let is_report = output
        .status
        .code()
        .is_some_and(|code| code <= i32::from(UNKNOWN));
    let report = serde_json::from_slice::<Value>(&output.stdout)
        .ok()
        .filter(|_| is_report);
    let Some(mut report) = report else {
        let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
        if let Some(recording) = recording {
            said = in_words_of_client(&said, &recording.path);
        }
        if said.trim().is_empty() {
            said = format!("kpx: the command failed ({})\n", output.status);
        }
        return Err(said);
    };
    let cuts = answer::cut(&mut report, answer::MOST).map_err(|size| {
        format!(
            "kpx: the answer has {size} bytes, and an answer has at most {}\n",
            answer::MOST
        )
    })?;
    let mut notes = Vec::new();
    if !cuts.is_empty() {
        notes.push(format!(
            "The answer is cut: {}. Ask for less: one Service, node or check.",
            cuts.join("; ")
        ));
    }
    Ok((report, notes))
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources();
        let redacted = if self.redaction.is_some() {
            " Names and addresses in answers are redacted, each always the same way; questions may use the original ones."
        } else {
            ""
        };
        ServerConfig::new(capabilities.build())
            .with_server_info(Implementation::new("kpx", env!("CARGO_PKG_VERSION")).with_title("kpx"))
            .with_instructions(format!(
                "kpx tells why Kubernetes Services work or fail on a node (kube-proxy in mode iptables, ipvs or nftables), from the \
                 node itself or from a dump. Every tool only reads. For a failing Service, call `why`; for a node, `doctor`; for a \
                 dump or pasted output of commands, `open` first. \"unknown\" means that data is missing, not that all is well. A \
                 fix is a command for a person to run: kpx prints its plan before it changes anything.{redacted}"
            ))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(
            TOOLS.iter().map(Spec::tool).collect(),
        ))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = TOOLS.iter().find(|tool| tool.name == request.name);
        let tool = tool.ok_or_else(|| {
            let names: Vec<_> = TOOLS.iter().map(|tool| tool.name).collect();
            ErrorData::invalid_params(
                format!(
                    "kpx has no tool {}: it has {}",
                    request.name,
                    names.join(", ")
                ),
                None,
            )
        })?;
        let given = request.arguments.unwrap_or_default();
        let answer = Box::pin(self.answer(tool, &given));
        let cancelled = Box::pin(context.ct.cancelled());
        let answer = match select(answer, cancelled).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err("kpx: stopped, as the client asked\n".to_owned()),
        };
        let result = match answer {
            Ok((report, notes)) => {
                let texts = [report.to_string()].into_iter().chain(notes);
                let mut result = CallToolResult::success(texts.map(ContentBlock::text).collect());
                result.structured_content = Some(report);
                result
            }
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.trim_end())]),
        };
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resources = SCHEMAS.iter().map(|(kind, _)| {
            Resource::new(tools::uri(kind), *kind)
                .with_description(format!("The JSON schema of {kind}"))
                .with_mime_type(SCHEMA)
        });
        Ok(ListResourcesResult::with_all_items(resources.collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let kind = SCHEMAS
            .iter()
            .map(|(kind, _)| kind)
            .find(|kind| tools::uri(kind) == request.uri);
        let schema = kind.and_then(|kind| schemas::named(kind));
        let schema = schema.ok_or_else(|| {
            ErrorData::resource_not_found(
                format!(
                    "kpx has no resource {}: resources/list has all",
                    request.uri
                ),
                None,
            )
        })?;
        let schema = ResourceContents::text(schema, request.uri).with_mime_type(SCHEMA);
        Ok(ReadResourceResult::new(vec![schema]).into())
    }
}
