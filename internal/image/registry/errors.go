package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
)

// classify gives an error of containerd's resolver its kind.
func classify(err error) error {
	if errs.Kind(err) != nil {
		return err
	}
	if kind := kindOf(err); kind != nil {
		return &kinded{err, kind}
	}
	return err
}

// kinded is an error with a kind that its text does not name.
type kinded struct{ err, kind error }

func (k *kinded) Error() string { return k.err.Error() }

// Unwrap returns the error and its kind.
func (k *kinded) Unwrap() []error { return []error{k.err, k.kind} }

// answerError is what an endpoint has answered, in words that name it.
type answerError struct {
	text string
	kind error
}

func (a *answerError) Error() string { return a.text }

// Unwrap returns the kind.
func (a *answerError) Unwrap() error { return a.kind }

// inWords has words for the answers that say what to do: the endpoint does not have what was asked for, or refuses this
// client. Other errors stay as they are.
func (r *Repository) inWords(e *endpoint, what string, err error) error {
	label := e.label(len(r.endpoints))
	var status remoteerrors.ErrUnexpectedStatus
	hasStatus := errors.As(err, &status)
	var denied *answerError
	var token *tokenError
	switch {
	case errors.As(err, &denied), errs.Kind(err) != nil:
		return err
	case errors.As(err, &token) && hasStatus && status.StatusCode == http.StatusNotFound:
		return err // of the server that issues tokens
	case errors.Is(err, docker.ErrInvalidAuthorization):
		denied = r.refusal(e, label, http.StatusUnauthorized)
	case errdefs.IsNotFound(err), hasStatus && status.StatusCode == http.StatusNotFound:
		return &answerError{fmt.Sprintf("%s does not have %s", label, what), errs.NotFound}
	case hasStatus && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden):
		denied = r.refusal(e, r.server(label, e, err, status), status.StatusCode)
	default:
		return err
	}
	var said docker.Errors
	if errors.As(err, &said) && len(said) > 0 {
		denied.text += fmt.Sprintf(": it says %.200q", said[0].Error())
	}
	return denied
}

// label names an endpoint for people. all is the number of endpoints.
func (e *endpoint) label(all int) string {
	if e.index < all-1 {
		return "the mirror " + e.Host
	}
	return "the registry " + e.Host
}

// server names the server that has sent a status: the endpoint, the one that issues its tokens, or one to which it redirects.
func (r *Repository) server(label string, e *endpoint, err error, status remoteerrors.ErrUnexpectedStatus) string {
	at, bad := url.Parse(status.RequestURL)
	if bad != nil {
		return label
	}
	var token *tokenError
	switch {
	case errors.As(err, &token):
		return fmt.Sprintf("%s, which issues the tokens of %s,", at.Host, label)
	case at.Host != e.Host:
		return fmt.Sprintf("%s, to which %s redirects,", at.Host, label)
	}
	return label
}

// refusal is the error of a server that answers an endpoint's request with 401 or 403.
func (r *Repository) refusal(e *endpoint, server string, code int) *answerError {
	text := ""
	source := r.creds.used(e, r.sources.place(e.index))
	switch {
	case code == http.StatusForbidden && source != "":
		text = fmt.Sprintf("%s denies access to %s with the credentials of %s (403)", server, r.path, source)
	case code == http.StatusForbidden:
		text = fmt.Sprintf("%s denies access to %s without credentials (403)", server, r.path)
	case source != "":
		text = fmt.Sprintf("%s refused the credentials of %s (401)", server, source)
	default:
		text = fmt.Sprintf("%s wants credentials and berth has none (401); it may answer so if it does not have %s", server, r.path)
		if missing := r.creds.keys.Missing(); len(missing) > 0 {
			text += fmt.Sprintf("; %s of image.credential_files does not exist", strings.Join(missing, ", "))
		}
	}
	return &answerError{text, errs.Denied}
}

func kindOf(err error) error {
	var status remoteerrors.ErrUnexpectedStatus
	var netErr net.Error
	var opErr *net.OpError
	var urlErr *url.Error
	var errno syscall.Errno
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nil
	case errdefs.IsNotFound(err):
		return errs.NotFound
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return errs.Denied
	case errors.As(err, &status):
		return kindOfStatus(status.StatusCode)
	case errdefs.IsFailedPrecondition(err), errdefs.IsInvalidArgument(err):
		// A digest or a size that differs from the descriptor.
		return errs.Invalid
	case errdefs.IsNotImplemented(err):
		return errs.Unsupported
	case errors.As(err, &errno) && !errors.As(err, &opErr) && !errors.As(err, &urlErr):
		return nil // of the disk, such as EIO; an Errno has the methods of net.Error
	case errors.As(err, &netErr), errors.As(err, &urlErr), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errs.Unavailable
	}
	return nil
}

func kindOfStatus(code int) error {
	switch {
	case code == http.StatusNotFound:
		return errs.NotFound
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return errs.Denied
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
		return errs.Unavailable
	}
	return errs.Invalid
}

// UnservedError is the error of a registry that does not serve a reference: it does not have it, it refuses this client
// (401, 403), or it cannot be reached. Another registry may serve it. Its text and kind are Err's.
type UnservedError struct{ Err error }

func (e *UnservedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UnservedError) Unwrap() error { return e.Err }

// isUnserved reports whether an error of the endpoints of a registry says that the registry does not serve a reference.
func isUnserved(err error) bool {
	return errors.Is(err, errs.NotFound) || errors.Is(err, errs.Unavailable) || errors.Is(err, errs.Denied)
}

// Scrub returns err without all text that could be a secret: user info and queries of
// URLs, authorization headers, and the credentials themselves in each form in which
// they are sent. It wraps only the kind and the end of a context.
func Scrub(err error, auth Auth) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range auth.secrets() {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	for _, pattern := range secretPatterns() {
		text = pattern.ReplaceAllString(text, "${1}"+redacted)
	}
	s := &scrubbed{text: text}
	if kind := errs.Kind(err); kind != nil { // which err need not wrap: the error of a full disk has one
		s.keeps = append(s.keeps, kind)
	}
	for _, keep := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, keep) {
			s.keeps = append(s.keeps, keep)
		}
	}
	return s
}

const redacted = "REDACTED"

func secretPatterns() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s"@]*@`),
		regexp.MustCompile(`(://[^\s"?]*\?)[^\s"]*[^\s":]`), // a colon after it belongs to the text
		regexp.MustCompile(`((?i:bearer|basic) )[A-Za-z0-9._~+/=-]{8,}`),
	}
}

func (a Auth) secrets() []string {
	var secrets []string
	add := func(s string) {
		if s != "" {
			secrets = append(secrets, s, url.QueryEscape(s))
		}
	}
	add(a.Auth)
	add(a.IdentityToken)
	add(a.RegistryToken)
	add(a.Password)
	if user, password, err := decodeAuth(a.Auth); err == nil {
		add(password)
		add(base64.StdEncoding.EncodeToString([]byte(user + ":" + password)))
	}
	if a.Username != "" {
		add(base64.StdEncoding.EncodeToString([]byte(a.Username + ":" + a.Password)))
	}
	return secrets
}

type scrubbed struct {
	text  string
	keeps []error
}

func (s *scrubbed) Error() string   { return s.text }
func (s *scrubbed) Unwrap() []error { return s.keeps }
