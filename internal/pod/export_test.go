package pod

// GracePeriods returns how many grace periods are kept.
func (s *Service) GracePeriods() int {
	s.graces.mu.Lock()
	defer s.graces.mu.Unlock()
	return len(s.graces.pending)
}

// ImageInUse returns the ids of containers that use the image.
func (s *Service) ImageInUse(imageID string) []string {
	var ids []string
	for _, rec := range s.Containers.records.Containers.All() {
		if rec.Image.ID == imageID {
			ids = append(ids, rec.ID)
		}
	}
	return ids
}
