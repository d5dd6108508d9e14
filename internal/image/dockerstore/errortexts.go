package dockerstore

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"

	"github.com/moby/moby/api/types/jsonstream"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// textKind gives errors with one of the words a kind. Words are in lower case.
type textKind struct {
	kind  error
	words []string
}

// textKinds are looked for in this order. Engines return most faults of registries as text
// alone, with status 500, or as not found when access is denied.
func textKinds() []textKind {
	return []textKind{
		{errs.Exhausted, []string{"no space left on device", "disk quota exceeded"}},
		{errs.Unsupported, []string{
			"no matching manifest for", "no match for platform in manifest", "does not match the specified platform",
			"does not provide the specified platform", "cannot be used on this platform", "unsupported manifest media type",
		}},
		{errs.Unavailable, []string{
			"500 internal server error", "502 bad gateway", "503 service unavailable", "504 gateway timeout",
			"429 too many requests", "toomanyrequests", "service unavailable",
		}},
		{errs.Denied, []string{
			"unauthorized", "no basic auth credentials", "access denied", "access forbidden", "authorization failed",
			"insufficient_scope", "403 forbidden", "denied:",
		}},
		{errs.Unavailable, []string{
			"connection refused", "no such host", "network is unreachable", "no route to host", "i/o timeout",
			"connection reset", "tls handshake timeout", "client.timeout exceeded", "server misbehaving",
			"unexpected eof", "dial tcp", "request canceled",
		}},
		{errs.NotFound, []string{
			"manifest unknown", "name unknown", "unknown blob", "http 404", "404 not found", "not found",
			"does not exist",
		}},
		{errs.Invalid, []string{
			"verification failed", "failed size validation", "failed verification", "unexpected commit digest",
			"mismatched image", "invalid diffid", "wrong diff id", "error unmarshalling content", "invalid character",
			"invalid tar header", "unexpected end of json input", "error processing tar file",
		}},
	}
}

// kindOfText returns the kind of an error that has no other than its text, nil for an unknown
// one.
func kindOfText(text string) error {
	text = strings.ToLower(text)
	for _, row := range textKinds() {
		for _, words := range row.words {
			if strings.Contains(text, words) {
				return row.kind
			}
		}
	}
	return nil
}

// withKind gives an engine's error a kind: by its text, which is more exact, or else by its
// HTTP status, 0 for none. Otherwise err keeps the one that it has.
func withKind(err error, status int) error {
	kind := kindOfText(err.Error())
	if kind == nil {
		kind = kindOfStatus(status)
	}
	has := errs.Kind(err)
	if kind == nil || errors.Is(has, kind) {
		return err
	}
	text := err.Error()
	if has != nil {
		text = strings.TrimSuffix(text, ": "+has.Error())
	}
	return &engineError{text, kind}
}

func kindOfStatus(status int) error {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return errs.Denied
	case http.StatusBadRequest:
		return errs.Invalid
	case http.StatusNotFound:
		return errs.NotFound
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return errs.Unavailable
	case http.StatusNotImplemented:
		return errs.Unsupported
	}
	return nil
}

// engineError is an engine's text with the kind that was read out of it. It hides a kind that
// the engine gave the error.
type engineError struct {
	text string
	kind error
}

func (e *engineError) Error() string { return fmt.Sprintf("%s: %v", e.text, e.kind) }

func (e *engineError) Unwrap() error { return e.kind }

// closedEarly is the error of an engine that closed the connection before its answer was complete.
func closedEarly(err error) error {
	return &image.AwayError{Err: fmt.Errorf("the engine closed the connection before it was done: %w: %w", err, errs.Unavailable)}
}

// isAway reports whether an error is of an engine that does not answer, and not of a registry.
func isAway(err error) bool {
	var known *image.AwayError
	return api.IsAway(err) || errors.As(err, &known)
}

// maxMessage bounds one message of an engine's stream, in bytes.
const maxMessage = 1 << 20

// readMessages calls each with the messages of a pull or a load, until the engine ends the
// stream. It returns an error that the engine reports, with its kind.
func readMessages(stream io.Reader, each func(jsonstream.Message)) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxMessage)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var message jsonstream.Message
		if err := json.Unmarshal(line, &message); err != nil {
			return fmt.Errorf("the engine's answer is no JSON: %w", err)
		}
		if message.Error != nil {
			return withKind(message.Error, message.Error.Code)
		}
		each(message)
	}
	err := lines.Err()
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return closedEarly(err)
	}
	if err != nil {
		return fmt.Errorf("cannot read the engine's answer: %w", err)
	}
	return nil
}
