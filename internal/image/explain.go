package image

import (
	"context"
	"time"

	"github.com/opencontainers/go-digest"
)

// Explainer is a store that pulls by itself, and says how.
type Explainer interface {
	// Explain says where a pull of ref with auth looks for the image, and what decides whether it may be
	// used for pods of the target's namespace. It sends nothing, unless try is set: then it asks each endpoint what ref means, up to the
	// candidate at which a pull stops, decides
	// about the image as a pull does, and asks for the artifacts that refer to it. Errors are those of Pull.
	Explain(ctx context.Context, target PullTarget, ref string, auth Auth, try bool) (*Explanation, error)
}

// Explanation is where a pull looks for an image, and whether it may be used. It contains no secret.
type Explanation struct {
	// Ref is the full reference that this explanation is about: the first candidate.
	Ref string `json:"ref"`
	// Platform is the one for which the image is pulled.
	Platform string `json:"platform,omitempty"`
	// ShortName is set if the reference that was asked for names no registry. Candidates are the full
	// references that are tried for it, in this order.
	ShortName  bool     `json:"shortName"`
	Candidates []string `json:"candidates"`
	// Present is the candidate by which the node has an image, so that the reference means this image; "" if it has none.
	Present string `json:"present,omitempty"`
	// Next explains the other candidates, in their order. Those after the one at which a pull stops are not tried, and their
	// endpoints say so in Skipped: the policy rejects that one, or, with try, its registry has the image, or fails in a way
	// for which a pull asks no other registry.
	Next []Explanation `json:"next,omitempty"`
	// Fault says why the configuration of the registry cannot be used, "" if it can. With a fault a pull fails before it asks
	// an endpoint.
	Fault string `json:"fault,omitempty"`
	// Endpoints in the order in which they are asked, then those that are not asked.
	Endpoints []Endpoint `json:"endpoints"`
	// Admission is nil on a node that has neither a policy nor verifiers: all images may be used.
	Admission *Admission `json:"admission,omitempty"`
	// Referrers are the artifacts that are about the image, nil if nothing was asked, or no endpoint knows the image.
	Referrers *Referrers `json:"referrers,omitempty"`
}

// Referrers are manifests that refer to another one, such as signatures and bills of materials.
type Referrers struct {
	// Of is the manifest to which they refer.
	Of digest.Digest `json:"of"`
	// List has the first of them, as the registry sorts them. LeftOut is the number of the others.
	List    []Referrer `json:"list"`
	LeftOut int        `json:"leftOut,omitempty"`
	// Fault says why they are not known.
	Fault string `json:"fault,omitempty"`
}

// Referrer is one manifest that refers to another one, as the registry describes it.
type Referrer struct {
	ArtifactType string        `json:"artifactType"`
	Digest       digest.Digest `json:"digest"`
	// Size is that of the manifest, in bytes.
	Size int64 `json:"size"`
}

// Admission is what decides whether an image may be used, by the name that was explained.
type Admission struct {
	// Policy is nil without a policy file, Verifiers without programs.
	Policy    *PolicyDecision `json:"policy,omitempty"`
	Verifiers *Verifiers      `json:"verifiers,omitempty"`
	// Trial is the decision about the image that the registry has now, nil if it was not tried.
	Trial *AdmissionTrial `json:"trial,omitempty"`
}

// PolicyDecision is the part of the policy that holds for a name.
type PolicyDecision struct {
	File string `json:"file"`
	// Fault says why the file cannot be used, which refuses all images. The rest is empty then.
	Fault string `json:"fault,omitempty"`
	// Scope is "default" or docker:SCOPE. An image must meet all Requirements.
	Scope        string        `json:"scope,omitempty"`
	Requirements []Requirement `json:"requirements,omitempty"`
}

// Requirement is one requirement of a policy, for people.
type Requirement struct {
	// Type is that of the file, such as sigstoreSigned. Means says what it does with an image.
	Type  string `json:"type"`
	Means string `json:"means"`
	// Keys are those that may have signed, with their files and fingerprints. Certificate says which
	// certificate may have signed instead, and Logs whose record of the signature is needed.
	Keys        []string `json:"keys,omitempty"`
	Certificate string   `json:"certificate,omitempty"`
	Logs        []string `json:"logs,omitempty"`
	// Identity is what the signature must say that it signs.
	Identity string `json:"identity,omitempty"`
	// Fault says why the keys cannot be used, which refuses all images.
	Fault string `json:"fault,omitempty"`
}

// Verifiers are the programs that are asked about an image, in their order. All must accept it.
type Verifiers struct {
	Dir      string   `json:"dir"`
	Programs []string `json:"programs"`
	// Fault says why the directory cannot be read, which refuses all images.
	Fault string `json:"fault,omitempty"`
}

// AdmissionTrial is a decision about an image.
type AdmissionTrial struct {
	// Digest is what the name means, "" if that is not known.
	Digest   digest.Digest `json:"digest,omitempty"`
	Accepted bool          `json:"accepted"`
	// Fault says why it is refused, or why nothing could be decided, which refuses it too.
	Fault string `json:"fault,omitempty"`
	// Signatures are those that were found, if the policy wants any.
	Signatures []SignatureTrial `json:"signatures,omitempty"`
}

// SignatureTrial is a decision about a signature.
type SignatureTrial struct {
	// Place is where the registry has it.
	Place string `json:"place"`
	// Fault says why it does not count, "" if it does.
	Fault string `json:"fault,omitempty"`
}

// Endpoint is one host that serves a repository.
type Endpoint struct {
	URL string `json:"url"`
	// Mirror is false for the registry itself.
	Mirror bool `json:"mirror"`
	// Source is the file and line that names the endpoint, or why it is there without one. Problem says what is wrong with
	// what the file has of it.
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
