package image

import (
	"context"
	"time"

	"github.com/opencontainers/go-digest"
)

// Explainer is a store that pulls by itself, and says how.
type Explainer interface {
	// Explain says where a pull of ref with auth looks for the image. It sends nothing, unless try is
	// set: then it asks each endpoint what ref means. Errors are those of Pull.
	Explain(ctx context.Context, ref string, auth Auth, try bool) (*Explanation, error)
}

// Explanation is where a pull looks for an image. It contains no secret.
type Explanation struct {
	// Ref is the full reference.
	Ref string `json:"ref"`
	// ShortName is set if the reference that was asked for names no registry. Candidates are the full
	// references that are tried for it, in this order.
	ShortName  bool     `json:"shortName"`
	Candidates []string `json:"candidates"`
	// Endpoints in the order in which they are asked, then those that are not asked.
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint is one host that serves a repository.
type Endpoint struct {
	URL string `json:"url"`
	// Mirror is false for the registry itself.
	Mirror bool `json:"mirror"`
	// Source is the file and line that names the endpoint, or why it is there without one. Problem says
	// why a file of the configuration is not used.
	Source  string `json:"source"`
	Problem string `json:"problem,omitempty"`
	// Credentials says whose credentials it gets.
	Credentials  string   `json:"credentials"`
	TLS          []string `json:"tls"`
	Capabilities []string `json:"capabilities"`
	// Skipped says why it is not asked for the reference, "" if it is.
	Skipped string `json:"skipped,omitempty"`
	// Health says how it failed lately and when it has its place again, "" if it did not fail.
	Health string `json:"health,omitempty"`
	// Attempt is its answer, nil if it was not tried.
	Attempt *Attempt `json:"attempt,omitempty"`
}

// Attempt is the answer of an endpoint to what a reference means.
type Attempt struct {
	Took time.Duration `json:"took"`
	// Digest and MediaType of the manifest; empty with a Fault.
	Digest    digest.Digest `json:"digest,omitempty"`
	MediaType string        `json:"mediaType,omitempty"`
	Fault     string        `json:"fault,omitempty"`
}
