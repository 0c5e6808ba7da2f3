package main

func (r result) plot(dir string) error { return nil }
