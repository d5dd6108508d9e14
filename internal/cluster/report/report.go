// Package report passes the progress and the warnings of an operation on a cluster to the user
// interface.
package report

// Reporter shows progress and warnings. Its functions may be called at the same time.
type Reporter struct {
	// Step reports that a step begins. The caller calls the returned function when the step ends,
	// with its error.
	Step func(text string) (end func(error))
	// Warn reports a problem that stops nothing.
	Warn func(text string)
}

// RunStep runs one step, and reports its begin and its end.
func (r Reporter) RunStep(text string, do func() error) error {
	end := r.Step(text)
	err := do()
	end(err)
	return err
}
