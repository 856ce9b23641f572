//! Fields of the APIs of language models.

use crate::raw::TokenFormat;

/// Fields of a language model's API.
pub(super) struct TokenFields {
    /// Fields of responses. Each inner list is one number, which different responses and events have at different paths.
    pub(super) response: &'static [&'static [&'static str]],
    /// Where requests state the maximum number of tokens of a response.
    pub(super) endpoints: &'static [EndpointFields],
    /// Fields of requests with the number of responses that are generated, of which the highest counts.
    pub(super) repetitions: &'static [&'static str],
    /// Field of requests that may be an array of prompts.
    pub(super) prompts: Option<&'static str>,
    pub(super) end: EndFields,
}

/// Fields of requests to one endpoint.
pub(super) struct EndpointFields {
    /// Fields of which such a request has one.
    pub(super) required: &'static [RequiredField],
    /// The last segment of its path is one of these, if there are any.
    pub(super) last_segments: &'static [&'static str],
    /// Fields with the maximum number of tokens.
    pub(super) max: &'static [&'static str],
}

/// A field that requests to an endpoint have.
#[derive(Clone, Copy)]
pub(super) enum RequiredField {
    /// A string or an array at this path.
    Text(&'static str),
    /// A scalar at this path.
    Scalar(&'static str),
}

/// The last events of streams.
pub(super) struct EndFields {
    /// Whether every stream has one of these.
    pub(super) is_known: bool,
    /// Whether a document `[DONE]` is one.
    pub(super) is_done: bool,
    /// Whether it has a type of its own.
    pub(super) has_type: bool,
    /// Fields that only the last events have.
    pub(super) fields: &'static [&'static str],
}

/// The ends of streams whose format is not known.
pub(super) const ANY_END: EndFields =
    EndFields { is_known: false, is_done: true, has_type: true, fields: &["candidates[0].finishReason"] };

/// A field of an event that says that the stream has failed.
pub(super) const FAILURE: &str = "error.message";

const OPENAI: TokenFields = TokenFields {
    // Chat Completions and embeddings; the last event of Responses.
    response: &[&["usage.total_tokens", "response.usage.total_tokens"]],
    endpoints: &[
        // Chat Completions and Completions; llama.cpp takes `n_predict` before `max_tokens`.
        EndpointFields {
            required: &[RequiredField::Text("messages"), RequiredField::Text("prompt")],
            last_segments: &[],
            max: &["max_completion_tokens", "max_tokens", "n_predict"],
        },
        // Responses, where the prompt may be a stored one.
        EndpointFields {
            required: &[RequiredField::Text("input"), RequiredField::Scalar("prompt.id")],
            last_segments: &[],
            max: &["max_output_tokens"],
        },
    ],
    repetitions: &["n", "best_of"],
    prompts: Some("prompt"),
    // The usage may be in each event of Chat Completions.
    end: EndFields {
        is_known: true,
        is_done: true,
        has_type: false,
        fields: &["response.usage.total_tokens"],
    },
};

const ANTHROPIC: TokenFields = TokenFields {
    // Input tokens are in the event `message_start`, the tokens of the output in each `message_delta`.
    response: &[
        &["usage.input_tokens", "message.usage.input_tokens"],
        &["usage.cache_creation_input_tokens", "message.usage.cache_creation_input_tokens"],
        &["usage.cache_read_input_tokens", "message.usage.cache_read_input_tokens"],
        &["usage.output_tokens", "message.usage.output_tokens"],
    ],
    endpoints: &[
        EndpointFields {
            required: &[RequiredField::Text("messages")],
            last_segments: &[],
            max: &["max_tokens"],
        },
        // Text Completions, the predecessor of Messages.
        EndpointFields {
            required: &[RequiredField::Text("prompt")],
            last_segments: &[],
            max: &["max_tokens_to_sample"],
        },
    ],
    repetitions: &[],
    prompts: None,
    // The last `message_delta` has the final usage and says why the model has stopped.
    end: EndFields { is_known: true, is_done: false, has_type: true, fields: &["delta.stop_reason"] },
};

const GEMINI: TokenFields = TokenFields {
    response: &[&["usageMetadata.totalTokenCount"]],
    // Each name has two spellings (Protocol Buffers, ProtoJSON format).
    endpoints: &[EndpointFields {
        required: &[RequiredField::Text("contents")],
        last_segments: &[],
        max: &[
            "generationConfig.maxOutputTokens",
            "generationConfig.max_output_tokens",
            "generation_config.maxOutputTokens",
            "generation_config.max_output_tokens",
        ],
    }],
    repetitions: &[
        "generationConfig.candidateCount",
        "generationConfig.candidate_count",
        "generation_config.candidateCount",
        "generation_config.candidate_count",
    ],
    prompts: None,
    // A stream has one candidate. A prompt that is blocked has none.
    end: EndFields {
        is_known: true,
        is_done: false,
        has_type: false,
        fields: &["candidates[0].finishReason", "promptFeedback.blockReason"],
    },
};

/// Last segments of the paths of InvokeModel.
const INVOKE: &[&str] = &["invoke", "invoke-with-response-stream"];

const BEDROCK: TokenFields = TokenFields {
    // Converse and its stream; InvokeModel with a model of Anthropic, Llama or Titan.
    response: &[
        &["usage.totalTokens"],
        &["usage.input_tokens"],
        &["usage.cache_creation_input_tokens"],
        &["usage.cache_read_input_tokens"],
        &["usage.output_tokens"],
        &["prompt_token_count"],
        &["generation_token_count"],
        &["inputTextTokenCount"],
        &["results[0].tokenCount"],
    ],
    endpoints: &[
        // The path decides, because a request to Converse may have all fields of the others.
        EndpointFields {
            required: &[],
            last_segments: &["converse", "converse-stream"],
            max: &["inferenceConfig.maxTokens"],
        },
        EndpointFields {
            required: &[RequiredField::Scalar("anthropic_version")],
            last_segments: INVOKE,
            max: &["max_tokens"],
        },
        EndpointFields {
            required: &[RequiredField::Text("prompt")],
            last_segments: INVOKE,
            max: &["max_gen_len"],
        },
        EndpointFields {
            required: &[RequiredField::Text("inputText")],
            last_segments: INVOKE,
            max: &["textGenerationConfig.maxTokenCount"],
        },
    ],
    repetitions: &[],
    prompts: None,
    // The event `metadata`.
    end: EndFields { is_known: true, is_done: false, has_type: false, fields: &["usage.totalTokens"] },
};

impl TokenFields {
    pub(super) const fn of(format: TokenFormat) -> &'static Self {
        match format {
            TokenFormat::Openai => &OPENAI,
            TokenFormat::Anthropic => &ANTHROPIC,
            TokenFormat::Gemini => &GEMINI,
            TokenFormat::Bedrock => &BEDROCK,
        }
    }
}
