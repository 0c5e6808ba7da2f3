package memintent

import (
	"context"

	"intentd/internal/intent"
)

// Insert keeps an intent just as it is.
func (s *Store) Insert(_ context.Context, in intent.Intent) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.insert(in)
	return err
}
