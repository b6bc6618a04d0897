# frozen_string_literal: true

require "openssl"

module LockKeeper
  # The files of TLS, and its refusals in words.
  module Certificates
    # OpenSSL's codes for an unknown authority, and its words for a first answer that is no TLS.
    NO_AUTHORITY = [2, 7, 18, 19, 20, 21].freeze
    NO_TLS = /wrong version number|record layer failure|packet length too long|http request/i.freeze
    NO_CERTIFICATE = /alert (certificate required|handshake failure|unknown ca|bad certificate)/i.freeze

    # A retry gets the same answer.
    class Refused < IOError; end

    # What an error of OpenSSL means; the code is that of its look at the certificate.
    def self.failure(error, code = 0)
      text = error.message
      if NO_TLS.match?(text)
        Refused.new("no TLS is spoken there: is it http://?")
      elsif NO_CERTIFICATE.match?(text)
        Refused.new("the service wants a client certificate that it trusts: name its files (`cert` and " \
                    "`cert_key`, LOCKKEEPER_CERT and LOCKKEEPER_CERT_KEY)")
      elsif NO_AUTHORITY.include?(code)
        Refused.new("its certificate is not signed by an authority that is trusted here: name the file of " \
                    "that authority (`ca`, LOCKKEEPER_CA)")
      elsif !code.zero? || text.start_with?("hostname ")
        Refused.new("its certificate is not accepted: #{text[/\(([^()]*)\)\z/, 1] || text}")
      else
        IOError.new(text)
      end
    end

    # @param ca       the PEM file of the only authorities to trust; nil for those of the system
    # @param cert     the PEM file of a client certificate and of those that signed it, and its key
    def self.context(ca, cert, cert_key)
      context = OpenSSL::SSL::SSLContext.new
      # `Connection` checks the name, because OpenSSL checks none of an address.
      context.set_params(verify_mode: OpenSSL::SSL::VERIFY_PEER, verify_hostname: false)
      context.cert_store = trusted(ca) if ca
      raise ArgumentError, "`cert` and `cert_key` are given together" if cert.nil? != cert_key.nil?

      show(context, cert, cert_key) if cert
      context
    end

    def self.trusted(file)
      text = read(file, "ca")
      wrong = "`ca`: #{file} has no certificate: it needs a part -----BEGIN CERTIFICATE-----"
      raise ArgumentError, wrong unless text.include?("-----BEGIN CERTIFICATE-----")

      OpenSSL::X509::Store.new.tap { |store| store.add_file(file.to_s) }
    rescue OpenSSL::OpenSSLError
      raise ArgumentError, wrong
    end
    private_class_method :trusted

    def self.show(context, cert, cert_key)
      own, *above = OpenSSL::X509::Certificate.load(read(cert, "cert"))
      # Without a password: nobody is there to be asked for one.
      key = OpenSSL::PKey.read(read(cert_key, "cert_key"), "")
      context.add_certificate(own, key, above)
    rescue OpenSSL::OpenSSLError, ArgumentError => error
      raise if error.message.start_with?("`")

      raise ArgumentError, "`cert`, `cert_key`: #{cert} and #{cert_key} are no certificate with its " \
                           "private key: #{error.message}"
    end
    private_class_method :show

    def self.read(file, name)
      File.read(file)
    rescue SystemCallError => error
      raise ArgumentError, "`#{name}`: cannot read #{file}: #{Service.words(error)}; name a PEM file " \
                           "that this user may read"
    end
    private_class_method :read
  end
end
