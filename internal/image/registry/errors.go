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
		return fmt.Errorf("%w: %w", err, kind)
	}
	return err
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
		return errs.Invalid
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
	if errors.Is(err, errs.NotFound) || errors.Is(err, errs.Unavailable) || errors.Is(err, docker.ErrInvalidAuthorization) {
		return true
	}
	var status remoteerrors.ErrUnexpectedStatus
	return errors.As(err, &status) && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden)
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
