"""Paths."""

from django.urls import path

from .views import sold

urlpatterns = [path("", sold)]
