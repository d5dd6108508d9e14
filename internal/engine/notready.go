package engine

// NotReadyError is the error of Info while the backend cannot run containers. Clients show
// Reason, one word, as the reason of the node's condition.
type NotReadyError struct {
	Reason string
	Err    error
}

func (e *NotReadyError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NotReadyError) Unwrap() error { return e.Err }
