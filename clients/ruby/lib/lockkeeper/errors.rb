# frozen_string_literal: true

# The errors, and what to do about each.
module LockKeeper
  # The base of all errors of this package.
  class Error < StandardError; end

  # Another client holds the key, also after the wait. Retry later; its lease lasts for `retry_after`
  # seconds, unless it is renewed. `problem` is the answer of the service.
  class LockBusy < Error
    attr_reader :key, :problem, :owner, :retry_after

    def initialize(key, problem)
      super("#{problem["detail"]}; retry later, or wait longer")
      @key = key
      @problem = problem
      @owner = problem["owner"]
      @retry_after = problem["retry_after_ms"] && problem["retry_after_ms"] / 1000.0
    end
  end

  # The lease ended, or was about to, before the work did: stop, other work may overlap with yours. Or
  # before the work began: then nothing ran. An error of the work is its `cause`. Of several keys `key` is
  # the first one whose lease was lost.
  class LeaseLost < Error
    attr_reader :key, :fencing_token, :reason

    def initialize(key, fencing_token, reason, has_begun: true, name: "'#{key}'")
      ended = "ended: #{reason}; other work may overlap with yours"
      text = has_begun ? ended : "began: #{reason}; nothing ran"
      super("the lease on #{name} was lost before the work #{text}")
      @key = key
      @fencing_token = fencing_token
      @reason = reason
    end
  end

  # The claim ended while it waited: it was released elsewhere, its token was used elsewhere, or the
  # process ends. Nothing is held.
  class WaitCancelled < Error; end

  # The service did not answer in time, or the quota is used up. Retry later; nothing is held that was
  # not before.
  class ServiceUnavailable < Error; end

  # The key, an option, the API key, the URL or a certificate is wrong. Correct it: a retry gets the
  # same answer.
  class RequestRefused < Error
    attr_reader :status, :problem

    def initialize(message, status = 0, problem = {})
      super(message)
      @status = status
      @problem = problem
    end
  end
end
