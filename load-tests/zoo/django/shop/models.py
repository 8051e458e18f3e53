"""What the shop sells, and to whom."""

from django.db import models


class Article(models.Model):
    name = models.CharField(max_length=40, unique=True)
    price = models.DecimalField(max_digits=8, decimal_places=2)


class Sale(models.Model):
    article = models.ForeignKey(Article, on_delete=models.CASCADE, related_name="sales")
    quantity = models.PositiveIntegerField()
