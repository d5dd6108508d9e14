package pod

// Graces tells how many grace periods are remembered.
func (s *Service) Graces() int {
	s.graces.mu.Lock()
	defer s.graces.mu.Unlock()
	return len(s.graces.pending)
}
