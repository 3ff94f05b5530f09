//! Answers the actions of an agent: short requests with a complete answer, other than tasks and loads.

use std::{sync::atomic::Ordering, time::Duration};

use arrow_flight::{Action, ActionType};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Status as Refusal};

use super::{
    ANSWER_TIMEOUT, Agent,
    authentication::Caller,
    requests::{AccountedMemory, parse_request, short},
};
use crate::{
    Error, Right,
    protocol::{DatasetKey, RemoveRequest, wire::json},
};

/// The number of bytes in one message of a long answer.
const MESSAGE_BYTES: usize = 64 << 10;

/// The actions, each with its description for clients.
const ACTIONS: [(&str, &str); 7] = [
    ("status", "returns the state of the node"),
    ("catalog", "lists the datasets on the node"),
    ("map", "returns the nodes that hold the pieces of files"),
    ("certificate", "returns the certificate of the node"),
    ("remove", "removes a dataset"),
    ("hand-out", "assigns shards to a task of the client"),
    ("drain", "stops accepting tasks"),
];

/// Lists the actions for clients.
pub(super) fn list() -> impl Stream<Item = Result<ActionType, Refusal>> {
    let actions = ACTIONS.map(|(kind, description)| {
        Ok(ActionType { r#type: kind.to_string(), description: description.to_string() })
    });
    futures::stream::iter(actions)
}

/// Returns the right that the caller of an action needs.
fn required_right(kind: &str) -> Right {
    match kind {
        "remove" => Right::Write,
        "drain" => Right::Administer,
        _ => Right::Read,
    }
}

impl Agent {
    /// Runs an action in a thread that may block, and returns the stream of its answers.
    pub(super) async fn act(
        &self,
        request: Request<Action>,
    ) -> Result<impl Stream<Item = Result<arrow_flight::Result, Refusal>> + use<>, Refusal> {
        let kind = request.get_ref().r#type.clone();
        let caller = self.allowed(&request, &[required_right(&kind)])?;
        let (agent, body) = (self.clone(), request.into_inner().body);
        let _body = self.0.requests.take(body.len() as u64).map_err(|refusal| self.refuse(refusal))?;
        let _reads = match kind.as_str() {
            "catalog" | "map" => {
                Some(self.0.catalog_reads.clone().acquire_owned().await.expect("it is never closed"))
            }
            _ => None,
        };
        let answered = tokio::task::spawn_blocking(move || agent.answer(&caller, &kind, &body));
        let answers = answered.await.map_err(|error| Refusal::internal(error.to_string()))??;
        let bytes = answers.iter().map(|body| (body.len() + size_of::<Bytes>()) as u64).sum();
        let memory = self.0.requests.take(bytes).map_err(|refusal| self.refuse(refusal))?;
        Ok(stream_answers(answers, memory, ANSWER_TIMEOUT))
    }

    /// Runs an action of an authorized caller and returns all answers.
    fn answer(&self, caller: &Caller, kind: &str, body: &[u8]) -> Result<Vec<Bytes>, Refusal> {
        let refused = |error: Error| Refusal::failed_precondition(error.to_string());
        Ok(match kind {
            "status" => {
                let status = self.status();
                vec![json(&match caller.rights.contains(&Right::Administer) {
                    true => status,
                    false => status.without_others(&caller.name),
                })]
            }
            "catalog" => self.catalog().map_err(refused)?.iter().map(json).collect(),
            "map" => {
                let maps = self.maps(&parse_request::<Vec<DatasetKey>>(body)?).map_err(refused)?;
                let starts = (0..maps.len()).step_by(MESSAGE_BYTES);
                starts.map(|start| maps.slice(start..maps.len().min(start + MESSAGE_BYTES))).collect()
            }
            "certificate" => {
                let own = self.0.config.credentials.as_ref();
                own.map(|own| own.certificate.clone().into()).into_iter().collect()
            }
            "remove" => {
                let removal: RemoveRequest = parse_request(body)?;
                if !removal.is_sound() {
                    let what = "invalid request: the removal names another dataset or version";
                    return Err(self.refuse(Refusal::invalid_argument(what)));
                }
                self.remove(&caller.who(), &removal).map_err(refused)?;
                Vec::new()
            }
            "hand-out" => {
                if !self.hand_out(&caller.name, parse_request(body)?) {
                    let what = "the task does not exist, belongs to another client, or has too many shards";
                    return Err(Refusal::failed_precondition(what));
                }
                Vec::new()
            }
            "drain" => {
                self.0.draining.store(true, Ordering::Relaxed);
                Vec::new()
            }
            other => {
                let what = format!("this node does not support the action '{}'", short(other));
                return Err(self.refuse(Refusal::unimplemented(what)));
            }
        })
    }
}

/// Streams answers one at a time. The memory of the answers is released when all answers are sent, or when the client
/// has taken no answer for `timeout`.
fn stream_answers(
    answers: Vec<Bytes>,
    memory: AccountedMemory,
    timeout: Duration,
) -> impl Stream<Item = Result<arrow_flight::Result, Refusal>> {
    let (out, mut answered) = mpsc::channel(1);
    let (failure, failed) = oneshot::channel();
    tokio::spawn(async move {
        let _memory = memory;
        for body in answers {
            match tokio::time::timeout(timeout, out.send(Ok(arrow_flight::Result { body }))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    let what = format!("the client did not read answers for {} s", timeout.as_secs());
                    let _ = failure.send(Refusal::deadline_exceeded(what));
                    return;
                }
            }
        }
    });
    let rest = futures::stream::once(failed).filter_map(|failure| std::future::ready(failure.ok().map(Err)));
    futures::stream::poll_fn(move |context| answered.poll_recv(context)).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::{super::requests::Requests, *};

    #[tokio::test]
    async fn answers_that_nobody_takes_are_let_go_and_their_end_is_no_end() {
        let requests = Requests::new(0);
        let answers = |count: u8| (0..count).map(|number| vec![number].into()).collect::<Vec<Bytes>>();
        let held = || requests.take(64 << 20).unwrap();
        let mut taken = Box::pin(stream_answers(answers(5), held(), Duration::from_millis(50)));
        assert!(requests.take(1).is_err(), "they are held");
        assert_eq!(&taken.next().await.unwrap().unwrap().body[..], [0]);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(requests.take(1).is_ok(), "nobody took them");
        let rest: Vec<_> = taken.collect().await;
        assert!(rest.len() < 5 && rest.last().unwrap().is_err(), "{rest:?}");
        let all: Vec<_> = stream_answers(answers(5), held(), Duration::from_secs(20)).collect().await;
        assert!(all.len() == 5 && all.iter().all(Result::is_ok), "{all:?}");
        // A dropped stream holds no memory.
        drop(stream_answers(answers(5), held(), Duration::from_secs(20)));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(requests.take(64 << 20).is_ok());
    }
}
