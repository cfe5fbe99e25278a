"""Decides commits to Lance tables."""
