-- Refuses requests that would end Triton. Its HTTP parser crashes on deep nesting and on a shape of more than 2^31 with
-- JSON data. Over gRPC Triton refuses such requests itself, but unpacks a compressed message of 600 kB to 1.4 GB. A
-- body of 600,000 chunks of 1 byte ends Triton, too: the guard waits for the complete body, so Envoy sends large chunks.

local LIMITS = { header = 4096, body = 16 * 1024 * 1024, question = 1024, dimension = 65536 } -- per request

-- Advice for clients that send tensors as JSON.
local HOW = "(KServe's SDK: set_data_from_numpy(array, binary_data=True); curl: --data-binary @FILE, JSON and then the "
  .. "tensor's bytes, with -H 'Inference-Header-Content-Length: BYTES OF THE JSON')"

local function refuse(handle, status, text)
  handle:headers():replace("x-guard", "refused") -- by this header local_reply_config keeps the text, as JSON
  handle:respond({ [":status"] = status }, text)
end

-- Returns why Triton must not read this JSON header of a request, or nil. `body_bytes`: the size of the request's body.
local function reason(text, body_bytes)
  if text:find("\\", 1, true) then
    return "expected a JSON header without escapes"
  end
  if text:find('"data"%s*:') then
    return "expected binary tensors, found JSON data " .. HOW
  end
  if text:find('"shared_memory') then
    return "expected binary tensors, found shared memory"
  end
  local _, shapes = text:gsub('"shape"', "")
  local _, sizes = text:gsub('"binary_data_size"', "")
  for shape in text:gmatch('"shape"%s*:%s*%[([%d%s,]*)%]') do
    shapes = shapes - 1
    local elements = 1
    for digits in shape:gmatch("%d+") do
      local size = #digits < 10 and tonumber(digits) or 0
      if size < 1 or size > LIMITS.dimension then
        return "expected dimensions of 1 to " .. LIMITS.dimension
      end
      elements = elements * size
    end
    if elements > LIMITS.body then
      return "expected a smaller tensor"
    end
  end
  for digits in text:gmatch('"binary_data_size"%s*:%s*(%d+)') do
    sizes = sizes - 1
    if #digits > 9 or tonumber(digits) > body_bytes then
      return "expected a binary_data_size within the body"
    end
  end
  if shapes ~= 0 or sizes ~= 0 then
    return "expected shape and binary_data_size of whole numbers"
  end
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local path = headers:get(":path"):gsub("%?.*", "")
  if not path:find("^/v2") then
    if (headers:get("grpc-encoding") or "identity") ~= "identity" then
      refuse(handle, "415", "expected a message without compression")
    end
    return
  end
  if headers:get("content-encoding") then
    return refuse(handle, "415", "expected a body without Content-Encoding")
  end
  local infers = path:find("/infer$") ~= nil
  local most = infers and LIMITS.body or LIMITS.question
  local declared = headers:get("content-length")
  if declared and (#declared > 12 or not declared:find("^%d+$") or tonumber(declared) > most) then
    return refuse(handle, "413", "expected a body of at most " .. most .. " bytes")
  end
  local header = headers:get("inference-header-content-length") or ""
  local header_bytes = header:find("^%d%d?%d?%d?$") and tonumber(header) or 0
  if infers and (header_bytes < 1 or header_bytes > LIMITS.header) then
    local expected = "expected binary tensors and an Inference-Header-Content-Length of 1 to " .. LIMITS.header
    return refuse(handle, "400", header == "" and expected .. ", found none " .. HOW or expected)
  end
  local body = handle:body()
  local body_bytes = body and body:length() or 0
  if body_bytes > most then
    return refuse(handle, "413", "expected a body of at most " .. most .. " bytes")
  end
  if infers then
    if body_bytes < header_bytes then
      return refuse(handle, "400", "expected a body that is not shorter than its header")
    end
    local problem = reason(body:getBytes(0, header_bytes), body_bytes)
    if problem then
      refuse(handle, "400", problem)
    end
  end
end
