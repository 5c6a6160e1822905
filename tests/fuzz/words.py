"""Words that the readers look for, so that the fuzz reaches behind the first look."""

_WORDS = """
model messages role content type text stream stream_options include_usage max_tokens n
best_of max_completion_tokens prompt input suffix system tools functions response_format
image_url detail input_audio data format source title name tool_calls function arguments
usage choices delta message message_start message_delta content_block_delta prompt_tokens
completion_tokens total_tokens input_tokens output_tokens cache_read_input_tokens
prompt_tokens_details cached_tokens completion_tokens_details reasoning_tokens error x_groq
index finish_reason content_block partial_json thinking
contents content parts inlineData inline_data mimeType data fileData functionCall
functionResponse generationConfig generation_config maxOutputTokens max_output_tokens
candidateCount systemInstruction cachedContent requests candidates finishReason usageMetadata
promptTokenCount candidatesTokenCount thoughtsTokenCount toolUsePromptTokenCount totalTokenCount
cachedContentTokenCount promptTokensDetails modality tokenCount promptFeedback blockReason
groundingMetadata webSearchQueries embeddings predictions statistics
instructions max_output_tokens file url documents query results quality size partial_images
response output item item_id output_index encrypted_content status meta b64_json
response.output_text.delta response.completed transcript.text.done speech.audio.done
image_generation.completed server_tool_use cache_creation input_token_details
inferenceConfig maxTokens toolConfig toolUse toolResult reasoningContent citationsContent document
video audio bytes json contentBlockIndex contentBlockDelta contentBlockStart metadata inputTokens
outputTokens cacheReadInputTokens cacheDetails ttl trace promptRouter inputText outputText
generation generation_token_count outputs completions meta tokens embedding images anthropic_version
amazon-bedrock-invocationMetrics inputTokenCount outputTokenCount additionalModelRequestFields
message-start content-start content-delta tool-plan-delta tool-call-delta message-end billed_units
tokens search_units image_tokens texts images inputs message chat_history event_type stream-end
text-generation done done_reason load prompt_eval_count eval_count num_predict options embeddings
"""
KEYS: tuple[str, ...] = tuple(dict.fromkeys(_WORDS.split()))
