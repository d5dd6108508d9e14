package image

import "context"

// Admitter is a store that follows a policy of which images may be used. It is an optional interface.
type Admitter interface {
	// Admit returns nil if a container of a pod of the namespace may be made of the image that ref finds. namespace is ""
	// for a pod without one. name is how the author of the pod calls the image, "" if that is not known. The error is a
	// RefusedError if the image may not be used; another one says why that could not be decided, and the image may not be
	// used either.
	Admit(ctx context.Context, namespace, ref, name string) error
}

// RefusedError is the error of an image that the policy or a verifier of the node refuses. Its text
// and kind are Err's. CRI has a word for it, which the kubelet shows.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RefusedError) Unwrap() error { return e.Err }
