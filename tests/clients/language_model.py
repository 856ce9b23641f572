"""A stand-in for a provider of language models: OpenAI's Chat Completions and Responses, and Anthropic's Messages, whole and as streams.

A response has as many tokens as the request allows, times a share that depends on the number of the request. The prompt has one token for
four bytes of the request, rounded down.
"""

import asyncio
import json

EVENTS = 5
DEFAULT_OUTPUT = 400


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(payload, name=None):
    head = f"event: {name}\n" if name else ""
    data = payload if isinstance(payload, str) else json.dumps(payload)
    return f"{head}data: {data}\n\n".encode()


class LanguageModel:
    """Counts the tokens of all responses that it has begun."""

    def __init__(self, events=EVENTS, pause=0.0):
        self.used = 0
        self.requests = 0
        self.bodies = []
        self.events = events
        self.pause = pause

    async def start(self):
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=4096)
        return server, server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                await self.respond(lines[0].split()[1], body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def respond(self, path, body, writer):
        request = json.loads(body)
        self.requests += 1
        self.bodies = [*self.bodies[-9:], request]
        limits = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        allowed = next((request[name] for name in limits if request.get(name)), None)
        share = (self.requests * 37 % 100 + 1) / 100
        output = DEFAULT_OUTPUT if allowed is None else max(1, int(allowed * share))
        prompt = len(body) // 4
        self.used += prompt + output
        usage = {
            "/v1/chat/completions": self.completion,
            "/v1/responses": self.response,
            "/v1/messages": self.message,
        }[path]
        whole, events = usage(request, prompt, output)
        if not request.get("stream"):
            data = json.dumps(whole).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data)
            )
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for data in events:
            writer.write(chunk(data))
            await writer.drain()
            await asyncio.sleep(self.pause)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def completion(self, request, prompt, output):
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        base = {"id": "chatcmpl-1", "created": 1, "model": request["model"]}
        message = {"role": "assistant", "content": "Hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
        states = (request.get("stream_options") or {}).get("include_usage")
        part = {**base, "object": "chat.completion.chunk"}
        if states:
            part["usage"] = None
        delta = {"index": 0, "delta": {"role": "assistant", "content": "Hello "}, "finish_reason": None}
        events = [event({**part, "choices": [delta]})] * self.events
        if states:
            events.append(event({**part, "choices": [], "usage": usage}))
        return whole, [*events, event("[DONE]")]

    def response(self, request, prompt, output):
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + output,
        }
        whole = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": request["model"],
            "status": "completed",
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }
        started = {**whole, "status": "in_progress", "usage": None}
        created = {"type": "response.created", "sequence_number": 0, "response": started}
        completed = {"type": "response.completed", "sequence_number": 1, "response": whole}
        return whole, [event(created, "response.created"), event(completed, "response.completed")]

    def message(self, request, prompt, output):
        usage = {"input_tokens": prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        whole = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [{"type": "text", "text": "Hello"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": output},
        }
        started = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello "}}
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        events = [
            event({"type": "message_start", "message": started}, "message_start"),
            event(block, "content_block_start"),
            *[event(delta, "content_block_delta")] * self.events,
            event({"type": "content_block_stop", "index": 0}, "content_block_stop"),
            event({"type": "message_delta", "delta": end, "usage": {"output_tokens": output}}, "message_delta"),
            event({"type": "message_stop"}, "message_stop"),
        ]
        return whole, events
