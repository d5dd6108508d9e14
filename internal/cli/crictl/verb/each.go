package verb

import (
	"errors"
	"fmt"
	"io"
)

// Each calls a function for all IDs at once, because a stop may take the whole grace period. It
// prints done for each success, in the order of the IDs.
func Each(w io.Writer, ids []string, do func(id string) (done string, err error)) error {
	type result struct {
		done string
		err  error
	}
	results := make([]chan result, len(ids))
	for i, id := range ids {
		results[i] = make(chan result, 1)
		go func() {
			done, err := do(id)
			results[i] <- result{done, err}
		}()
	}
	var failed []error
	for _, r := range results {
		got := <-r
		failed = append(failed, got.err)
		if got.err == nil {
			fmt.Fprint(w, got.done)
		}
	}
	return errors.Join(failed...)
}
